"""Grammars of forced calls: llguidance takes them, and they allow calls in good form and nothing else."""

from __future__ import annotations

import functools
import json
from typing import Any

import pytest
from tokenizers import AddedToken

from tandem.runtime.reading.forced import Surroundings, forced_calls
from tandem.runtime.reading.formats import Format, Reading
from tests.readings import read
from tests.service import IM_END, byte_tokenizer

llguidance = pytest.importorskip("llguidance")

TOOLS: dict[str, Any] = {
    "find": {
        "type": "object",
        "properties": {
            "text": {"type": "string"},
            "limit": {"type": "integer"},
            "unit": {"enum": ["km", "mile"]},
            "where": {"$ref": "#/$defs/place"},
        },
        "required": ["text"],
        "$defs": {"place": {"type": "object", "properties": {"x": {"type": "number"}}, "required": ["x"]}},
    },
    "ping": {},
}
MARKERS = ("<tool_call>", "</tool_call>", "<think>", "</think>")


@functools.cache
def vocabulary(as_tokens: bool) -> tuple[Any, Any]:
    tokenizer = byte_tokenizer()
    if as_tokens:
        tokenizer.add_tokens([AddedToken(marker, special=False) for marker in MARKERS])
    size = tokenizer.get_vocab_size()
    return tokenizer, llguidance.LLTokenizer(tokenizer.to_str(), n_vocab=size, eos_token=IM_END)


def allows(text: str, form: Format, as_tokens: bool = False, **changes: Any) -> bool:
    """Whether `text` is an answer by the grammar, and may end there."""
    tokenizer, known = vocabulary(as_tokens)
    given = {"several": True, "thoughts": None} | changes
    around = Surroundings(form, given["thoughts"], MARKERS if as_tokens else ())
    grammar = llguidance.LLMatcher.grammar_from_lark(forced_calls(TOOLS, around, several=given["several"]))
    matcher = llguidance.LLMatcher(known, grammar, log_level=0)
    assert not matcher.is_error(), matcher.get_error()
    ids = tokenizer.encode(text, add_special_tokens=False).ids
    return matcher.try_consume_tokens(ids) == len(ids) and matcher.is_accepting()


def hermes(name: str, arguments: str) -> str:
    return f'<tool_call>\n{{"name": "{name}", "arguments": {arguments}}}\n</tool_call>'


def qwen(name: str, **values: str) -> str:
    lines = "".join(f"<parameter={key}>\n{value}\n</parameter>\n" for key, value in values.items())
    return f"<tool_call>\n<function={name}>\n{lines}</function>\n</tool_call>"


def llama(name: str, arguments: str) -> str:
    return f'{{"name": "{name}", "parameters": {arguments}}}'


FIND = '{"text": "a </tool_call> b", "limit": 3, "unit": "km", "where": {"x": 1.5}}'
GOOD = {
    Format.HERMES: [hermes("find", FIND), hermes("ping", "{}"), hermes("find", '{"text": "é\\n"}')],
    Format.QWEN_XML: [
        qwen("find", text="a\n<b>", limit="3", unit="km", where='{"x": 1.5}'),
        qwen("ping"),
        qwen("find", text="é"),
    ],
    Format.LLAMA: [llama("find", FIND), llama("ping", "{}")],
}
BAD = {
    Format.HERMES: [
        "", "no", hermes("other", "{}"), hermes("find", "{}"), hermes("find", '{"text": 1}'),
        hermes("ping", '{"a": 1}'), hermes("find", '{"text": "a", "unit": "m"}'), hermes("ping", "{}")[:-1],
    ],
    Format.QWEN_XML: [
        "", qwen("other"), qwen("find"), qwen("find", limit="3"), qwen("find", text="a", limit="b"),
        qwen("find", text="a", unit="m"), qwen("ping", text="a"), qwen("find", text="a", where="{}"),
    ],
    Format.LLAMA: ["", llama("other", "{}"), llama("find", "{}"), llama("ping", "{}") + ";"],
}  # fmt: skip
BETWEEN = {Format.HERMES: "\n", Format.QWEN_XML: "\n", Format.LLAMA: "; "}


@pytest.mark.parametrize("as_tokens", [False, True])
@pytest.mark.parametrize("form", Format)
def test_calls_in_good_form_are_allowed_and_no_others(form: Format, as_tokens: bool) -> None:
    # A marker within a string is a token of its own to some tokenizers, and then no text.
    good = [text.replace(" </tool_call> ", " ") if as_tokens else text for text in GOOD[form]]
    assert [text for text in good if not allows(text, form, as_tokens)] == []
    assert [text for text in BAD[form] if allows(text, form, as_tokens)] == []


@pytest.mark.parametrize("form", Format)
def test_one_call_or_several(form: Format) -> None:
    text = BETWEEN[form].join(GOOD[form][:2])
    assert allows(text, form, several=True) and not allows(text, form, several=False)
    assert allows(GOOD[form][0], form, several=False)


@pytest.mark.parametrize("as_tokens", [False, True])
@pytest.mark.parametrize("form", Format)
def test_thoughts_come_first(form: Format, as_tokens: bool) -> None:
    call = GOOD[form][1]
    for thoughts, text, wanted in (
        (None, "<think>\nhm\n</think>\n\n", False),
        (False, "<think>\nhm\n</think>\n\n", True),
        (False, "", True),
        (False, "hm</think>", False),
        (True, "hm < hm\n</think>\n\n", True),
        (True, "", False),
    ):
        assert allows(text + call, form, as_tokens, thoughts=thoughts) == wanted, (thoughts, text)


@pytest.mark.parametrize("form", Format)
def test_what_is_allowed_is_read(form: Format) -> None:
    """Both ends agree on the form: each allowed text reads as its calls, and as nothing else."""
    text = BETWEEN[form].join(GOOD[form])
    found = read(Reading(form, TOOLS).reader(), text, 3)
    assert (found.content, len(found.calls)) == ("", len(GOOD[form]))
    name, arguments = found.calls[0]
    assert name == "find" and json.loads(arguments)["where"] == {"x": 1.5}
