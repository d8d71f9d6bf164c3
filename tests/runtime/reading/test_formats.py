"""Which form a template is taken to know, and what of an answer's text must be seen for it."""

from __future__ import annotations

import pytest

from tandem.runtime.reading.formats import Format, Reading, format_of, is_open, thinks
from tandem.runtime.reading.writing import EXAMPLES, written
from tests.readings import read

# Lines of the families' templates that say how a call is written.
QWEN_25 = (
    r"""{{- "\n</tools>\n\nreturn a json object within <tool_call></tool_call> XML tags" }}{{- '", "arguments": ' }}"""
)
QWEN_CODER = r"""{{- '\n<tool_call>\n<function=' + tool_call.name + '>\n' }}{{- '<parameter=' + args_name + '>\n' }}"""
LLAMA_31 = r"""{{- "<|python_tag|>" + tool_call.name + ".call(" }}{{- '"parameters": ' }}"""
LLAMA_32 = r"""{{- 'Respond in the format {"name": function name, "parameters": dictionary of argument name}.' }}"""
ESCAPED = r"""{{- "Respond with {\"name\": function name, \"parameters\": dictionary}" }}"""
PLAIN = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"


@pytest.mark.parametrize(
    ("template", "form"),
    [
        (QWEN_25, Format.HERMES),
        (QWEN_CODER, Format.QWEN_XML),
        (LLAMA_31, Format.LLAMA),
        (LLAMA_32, Format.LLAMA),
        (ESCAPED, Format.LLAMA),
        (PLAIN, Format.HERMES),
        (None, Format.HERMES),
    ],
)
def test_forms_of_templates(template: str | None, form: Format) -> None:
    assert format_of(template) is form


def test_thoughts_of_templates() -> None:
    assert thinks("{{- '<think>\\n' }}") and thinks("{{ content.split('</think>')[-1] }}")
    assert not thinks(PLAIN) and not thinks(None)
    assert is_open("<|im_start|>assistant\n<think>\n") and is_open("<think>")
    assert not is_open("<think>\n\n</think>\n\n") and not is_open("say <think> to me\nassistant\n")


def test_what_must_be_seen() -> None:
    assert Reading().markers == ()
    assert Reading(Format.LLAMA, {}).markers == ("<|python_tag|>",)
    assert Reading(Format.HERMES, {}, False).markers == ("<tool_call>", "</tool_call>", "<think>", "</think>")


@pytest.mark.parametrize("form", Format)
def test_what_is_written_is_read(form: Format) -> None:
    schema = {"properties": {"s": {"type": "string"}, "n": {"type": "integer"}, "m": {"type": "object"}}}
    arguments = {"s": "a\n<b>", "n": 7, "m": {"k": None}}
    found = read(Reading(form, {"f": schema}).reader(), written(form, "f", arguments), 4)
    assert found.content == "" and found.calls == [("f", '{"s": "a\\n<b>", "n": 7, "m": {"k": null}}')]
    assert "function-name" in EXAMPLES[form]


@pytest.mark.parametrize(
    ("text", "opened", "reasoning", "content"),
    [
        ("<think>\na\n\nb\n</think>\n\nc", False, "a\n\nb", "c"),
        ("\n <think>a</think>c", False, "a", "c"),
        ("a\n</think>\n\n c", True, "a", " c"),
        ("<think>\na</think>", True, "a", ""),
        ("<think>\n\n</think>\n\nc\n", False, "", "c\n"),
        ("<think>\na\n", False, "a\n", ""),
        ("a </thin", True, "a </thin", ""),
        ("c <think>a</think>", False, "", "c <think>a</think>"),
        ("<think>a</think>b</think>c", False, "a", "b</think>c"),
        ("\n<thin", False, "", "\n<thin"),
        (" \n", True, " \n", ""),
        ("", False, "", ""),
    ],
)
def test_thoughts(text: str, opened: bool, reasoning: str, content: str) -> None:
    for size in (1, 2, 3, 5, 100):
        found = read(Reading(thoughts=opened).reader(), text, size)
        assert (found.reasoning, found.content) == (reasoning, content)


def test_thoughts_of_nobody() -> None:
    assert read(Reading().reader(), "<think>a</think>b").content == "<think>a</think>b"


def test_calls_within_thoughts_are_thoughts() -> None:
    call = '<tool_call>{"name": "f"}</tool_call>'
    found = read(Reading(tools={"f": {}}, thoughts=False).reader(), f"<think>{call}</think>{call}", 3)
    assert (found.reasoning, found.content, found.calls) == (call, "", [("f", "{}")])
