"""What is read depends on the text alone: calls of every form, cut anywhere, against what was written."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tandem.runtime.reading.formats import Format, Reading
from tests.readings import SIZES, Read, read

TOOLS: dict[str, Any] = {
    "find": {
        "type": "object",
        "properties": {
            "text": {"type": "string"},
            "limit": {"type": "integer"},
            "share": {"type": "number"},
            "deep": {"type": "boolean"},
            "where": {"type": "object"},
            "tags": {"type": "array"},
        },
    },
}
TOOLS["ping"] = TOOLS["find"]

plain = st.text(st.characters(exclude_characters="<>{|", exclude_categories=["Cs"]), min_size=1, max_size=12)
"""Content that begins no call."""

strings = st.text(st.characters(exclude_categories=["Cs"]), max_size=12) | st.sampled_from(
    ["a\nb", '"', "\\", "</parameter>", "</function>", "<tool_call>", "</tool_call>", "é😀", "\x00\x1f", "null", "1"]
)
leaves = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | strings
values = st.recursive(leaves, lambda inner: st.lists(inner) | st.dictionaries(strings, inner), max_leaves=4)
arguments = st.fixed_dictionaries(
    {},
    optional={
        "text": strings,
        "limit": st.integers(),
        "share": st.floats(allow_nan=False, allow_infinity=False),
        "deep": st.booleans(),
        "where": st.dictionaries(strings, values, max_size=3),
        "tags": st.lists(values, max_size=3),
    },
)
written = st.tuples(st.sampled_from(sorted(TOOLS)), arguments)
cuts = st.lists(st.integers(1, 9), min_size=1, max_size=5)


def hermes(name: str, args: dict[str, Any], key: str = "arguments") -> str:
    return "<tool_call>\n" + json.dumps({"name": name, key: args}, ensure_ascii=len(name) % 2 == 0) + "\n</tool_call>"


def qwen(name: str, args: dict[str, Any]) -> str:
    """As Qwen's template writes a call; what is no text and no container is written as Python does."""

    def bare(value: Any) -> str:
        return json.dumps(value, ensure_ascii=False) if isinstance(value, dict | list) else str(value)

    lines = "".join(f"<parameter={key}>\n{bare(value)}\n</parameter>\n" for key, value in args.items())
    return f"<tool_call>\n<function={name}>\n{lines}</function>\n</tool_call>"


def llama(name: str, args: dict[str, Any]) -> str:
    return json.dumps({"name": name, "parameters": args}, ensure_ascii=False)


def reading(form: Format, **changes: Any) -> Reading:
    return Reading(form, TOOLS, **changes)


def same(found: Read, wanted: list[tuple[str, Any]], content: str) -> None:
    assert [(name, json.loads(text)) for name, text in found.calls] == wanted
    assert found.content == content


@given(st.lists(written, max_size=4), plain, plain, cuts)
@pytest.mark.parametrize("write", [hermes, qwen])
def test_calls_between_texts(write: Any, wanted: list[Any], before: str, after: str, sizes: list[int]) -> None:
    text = before + "\n".join(write(*call) for call in wanted) + after
    form = Format.HERMES if write is hermes else Format.QWEN_XML
    space = before[len(before.rstrip()) :] if not wanted else ""
    content = before.rstrip() + space + (after if after.strip() or not wanted else "")
    same(read(reading(form).reader(), text, *sizes), wanted, content)


@given(st.lists(written, min_size=1, max_size=4), st.sampled_from(["; ", "\n", ";", ""]), st.booleans(), cuts)
def test_llamas_calls(wanted: list[Any], between: str, tagged: bool, sizes: list[int]) -> None:
    text = "<|python_tag|>" * tagged + between.join(llama(*call) for call in wanted)
    same(read(reading(Format.LLAMA).reader(), text, *sizes), wanted, "")


@given(strings.filter(lambda text: "</think>" not in text), plain, written, cuts, st.booleans())
def test_thoughts_before_calls(thought: str, content: str, call: Any, sizes: list[int], opened: bool) -> None:
    text = ("" if opened else "<think>") + f"\n{thought}\n</think>\n\n{content}" + hermes(*call)
    found = read(reading(Format.HERMES, thoughts=opened).reader(), text, *sizes)
    assert found.reasoning == thought.strip("\n")
    same(found, [call], content.lstrip("\n").rstrip())


FRAGMENTS = [
    "<tool_call>", "</tool_call>", "<function=find>", "<function=", "ping", ">", "</function>", "<parameter=text>",
    "<parameter=limit>", "</parameter>", "<think>", "</think>", "<|python_tag|>", "{", "}", "[", "]", ",", ":", ";",
    '"', "\\", "\\u00", '"name"', '"arguments"', '"parameters"', '"find"', "1", "-", "tru", "true", " ", "\n", "<", "x",
    '{"name": "find", "arguments": {', '{"name": "ping"', '"where": {"a": [1', "null",
]  # fmt: skip


@given(st.lists(st.sampled_from(FRAGMENTS), max_size=40), cuts, st.sampled_from(Format), st.booleans())
@example(["<tool_call>", "<function=find>", "<parameter=text>", "</tool_call>"], [1], Format.HERMES, False)
@settings(max_examples=200)
def test_whatever_a_model_writes(fragments: list[str], sizes: list[int], form: Format, cut: bool) -> None:
    """Pieces change nothing, arguments are JSON, and where there is no call nothing is lost."""
    text = "".join(fragments)
    whole = read(reading(form, thoughts=False).reader(), text, len(text) + 1, cut=cut)
    pieced = read(reading(form, thoughts=False).reader(), text, *sizes, cut=cut)
    assert (pieced.content, pieced.reasoning, pieced.calls) == (whole.content, whole.reasoning, whole.calls)
    for name, arguments in whole.calls[: -1 if cut else None]:
        assert name in TOOLS and isinstance(json.loads(arguments), dict)
    without_thoughts = read(reading(form).reader(), text, *sizes, cut=cut)
    assert without_thoughts.calls or without_thoughts.content == text


def test_calls_in_one_piece_and_in_many() -> None:
    """BUG-47."""
    text = (
        'hi<tool_call>{"name":"f","arguments":{"x":1}}</tool_call><tool_call>{"name":"g","arguments":{}}</tool_call>bye'
    )
    for size in SIZES:
        found = read(Reading(tools={"f": {}, "g": {}}).reader(), text, size)
        assert (found.content, found.calls) == ("hibye", [("f", '{"x":1}'), ("g", "{}")])


@pytest.mark.parametrize(
    ("form", "text"),
    [
        (Format.HERMES, "<tool_call>" * 6_000),
        (Format.HERMES, '<tool_call>{"arguments": {"a": "' * 2_500),
        (Format.HERMES, '<tool_call>{"name": "find", "arguments": {"a": ' + "[" * 60_000),
        (Format.HERMES, "<think>" + "\n" * 60_000),
        (Format.HERMES, "<tool_call>" + " " * 60_000),
        (Format.QWEN_XML, "<function=" * 6_000),
        (Format.QWEN_XML, "<function=find>\n<parameter=text>" + "</parameter>" * 5_000),
        (Format.QWEN_XML, "<function=find>\n<parameter=text>" + "</parameter>" + "\n" * 60_000),
        (Format.QWEN_XML, "<function=find>\n<parameter=" + "a" * 60_000),
        (Format.LLAMA, '{"parameters": {"a": "' + "b" * 60_000),
        (Format.LLAMA, "<|python_tag|>" * 5_000),
    ],
)
@pytest.mark.parametrize("size", [3, 1_000_000])
def test_time_is_linear_in_the_text(form: Format, text: str, size: int) -> None:
    """60,000 characters that give a reader as much to hold as can be: quadratic time would be minutes."""
    reader, start = reading(form, thoughts=False).reader(), time.process_time()
    for begin in range(0, len(text), size):
        reader.push(text[begin : begin + size])
    reader.end()
    assert time.process_time() - start < 4
