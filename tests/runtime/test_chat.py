"""Chat templates: the dialect they are written in, roles, content, and what happens when one refuses."""

from __future__ import annotations

import datetime
from pathlib import Path
from typing import Any

import pytest

from tandem.errors import RequestError
from tandem.runtime.chat import ChatTemplate, plain_content
from tests.service import IM_END, IM_START, TEMPLATE, ScriptedWorker, real_checkpoint, scripted_service

USER = [{"role": "user", "content": "hi"}]


def rendered(source: str, messages: list[dict[str, Any]] = USER, **variables: Any) -> str:
    return ChatTemplate(source, {"bos_token": "<s>", "eos_token": None}).render(messages, variables=variables)


def test_the_prompt_of_a_talk() -> None:
    talk = [{"role": "system", "content": "be brief"}, *USER]
    assert rendered(TEMPLATE, talk) == (
        "<|im_start|>system\nbe brief<|im_end|>\n<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"
    )
    assert ChatTemplate(TEMPLATE).render(USER, add_generation_prompt=False) == "<|im_start|>user\nhi<|im_end|>\n"


def test_the_dialect_of_hugging_face_templates() -> None:
    assert rendered("{% for m in messages %}\n  {% if true %}\n{{ m.content }}\n  {% endif %}\n{% endfor %}") == "hi\n"
    assert rendered("{% for i in [1, 2, 3] %}{% if i == 2 %}{% break %}{% endif %}{{ i }}{% endfor %}") == "1"
    assert rendered("{% generation %}{{ bos_token }}{{ eos_token }}{% endgeneration %}|") == "<s>|"
    assert rendered("{{ {'b': '<&>é', 'a': 1} | tojson }}") == '{"b": "<&>é", "a": 1}'
    assert rendered("{{ {'a': 1} | tojson(indent=1) }}") == '{\n "a": 1\n}'
    assert rendered("{{ strftime_now('%Y') }}") == str(datetime.datetime.now().year)
    assert rendered("{{ tools is none }}{{ thinking }}", thinking="deep") == "Truedeep"


@pytest.mark.parametrize(
    ("source", "part"),
    [
        ("{{ raise_exception('roles must alternate') }}", "roles must alternate"),
        ("{{ messages[1].content }}", "no element 1"),
        ("{{ messages[0].content + 1 }}", "str"),
        ("{{ ''.__class__.__mro__ }}", "unsafe"),
        ("{{ messages.append(1) }}", "unsafe"),
        ("{% if %}", "Expected an expression"),
    ],
)
def test_a_template_that_refuses_is_the_clients_error(source: str, part: str) -> None:
    with pytest.raises(RequestError, match="the chat template refuses these messages") as caught:
        rendered(source)
    assert part in str(caught.value)
    assert (caught.value.status, caught.value.param) == (400, "messages")


def test_a_prompt_that_ends_within_the_last_message() -> None:
    talk = [*USER, {"role": "assistant", "content": "yes, "}]
    opened = "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\nyes, "
    assert ChatTemplate(TEMPLATE).render_open(talk) == opened
    assert ChatTemplate("{{ messages[-1].content | trim }}!").render_open(talk) == "yes, "
    for source in ("{{ messages[0].content }}", "{% for i in [1, 2] %}{{ messages[-1].content }}{% endfor %}"):
        with pytest.raises(RequestError, match="no going on") as caught:
            ChatTemplate(source).render_open(talk)
        assert (caught.value.status, caught.value.param) == (400, "continue_final_message")


def test_no_template() -> None:
    with pytest.raises(RequestError, match="no chat template") as caught:
        ChatTemplate(None).render(USER)
    assert caught.value.status == 400


def test_developer_is_system_where_the_template_knows_no_developer() -> None:
    talk = [{"role": "developer", "content": "x"}]
    assert rendered("{{ messages[0].role }}", talk) == "system"
    assert rendered("{# developer #}{{ messages[0].role }}", talk) == "developer"


def test_content_in_parts() -> None:
    assert [plain_content(content) for content in ("a", ["a", "b"], None)] == ["a", "a\nb", ""]


def test_a_rendered_chat_gets_no_second_beginning() -> None:
    """BUG-52: the template writes the markers, so encoding adds none."""
    from tokenizers.processors import TemplateProcessing

    service = scripted_service(ScriptedWorker())
    service.tokenizer.post_processor = TemplateProcessing(
        single="<|im_start|> $A", special_tokens=[("<|im_start|>", IM_START)]
    )
    ids = service.encode(service.chat.render(USER), add_special_tokens=False)
    assert ids == (IM_START, *b"user\nhi", IM_END, *b"\n", IM_START, *b"assistant\n")
    assert service.encode("hi", add_special_tokens=True) == (IM_START, *b"hi")


@pytest.mark.smollm2
def test_smollm2_against_transformers(smollm2_gguf: Path) -> None:
    """BUG-52: the ids of a chat are those that the reference implementation makes of the same template."""
    from tokenizers import Tokenizer
    from transformers import PreTrainedTokenizerFast

    checkpoint = real_checkpoint(smollm2_gguf)
    tokenizer = Tokenizer.from_str(checkpoint.tokenizer_json)
    reference = PreTrainedTokenizerFast(tokenizer_object=Tokenizer.from_str(checkpoint.tokenizer_json))
    talk = [*USER, {"role": "assistant", "content": "hello, 1999!"}, {"role": "user", "content": "日本 <&>\n\n  x"}]
    assert checkpoint.chat_template is not None
    text = ChatTemplate(
        checkpoint.chat_template, {"bos_token": checkpoint.bos_token, "eos_token": checkpoint.eos_token}
    ).render(talk)
    expected = reference.apply_chat_template(
        talk, chat_template=checkpoint.chat_template, add_generation_prompt=True, tokenize=True, return_dict=False
    )
    assert tokenizer.encode(text, add_special_tokens=False).ids == expected


@pytest.mark.parametrize(
    ("source", "line"),
    [
        ("{% macro f(x) %}{{ f(x) }}{% endmacro %}{{ f(1) }}", "nested without end"),
        ("{{ " + "(" * 5000 + "1" + ")" * 5000 + " }}", "nested without end"),
        ("{{ 'a' * 10 ** 18 }}", "more memory than there is"),
    ],
)
def test_templates_without_measure_are_refused(source: str, line: str) -> None:
    with pytest.raises(RequestError, match=line) as caught:
        ChatTemplate(source).render([{"role": "user", "content": "Hi"}])
    assert (caught.value.status, caught.value.param) == (400, "messages")
