"""Calls in good form, in nearly good form, in bad form, and cut short."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tandem.runtime.reading.formats import Format, Reading
from tests.readings import SIZES, Read, read

TOOLS: dict[str, Any] = {
    "f": {"type": "object", "properties": {"x": {"type": "integer"}, "s": {"type": "string"}, "a": {"type": "array"}}},
    "g.h": {},
}


def read_all(text: str, form: Format = Format.HERMES, *, cut: bool = False, **changes: Any) -> Read:
    """What is read of `text`, which is the same in pieces of any size."""
    reading = Reading(form, TOOLS, **changes)
    found = [read(reading.reader(), text, size, cut=cut) for size in SIZES]
    for one in found:
        one.ids = []
    assert all(one == found[0] for one in found)
    return found[0]


@pytest.mark.parametrize(
    ("text", "calls"),
    [
        ('{"name": "f", "parameters": {"x": 1}}', [("f", '{"x": 1}')]),
        ('{"arguments": {"x": 1}, "name": "f"}', [("f", '{"x": 1}')]),
        ('{"id": 7, "type": "function", "name": "f", "arguments": {}}', [("f", "{}")]),
        ('{"name": "g.h"}', [("g.h", "{}")]),
        ('{"name": "g.h", "arguments": null}', [("g.h", "{}")]),
        ('{"name": "f", "arguments": "{\\"x\\": 1}"}', [("f", '{"x": 1}')]),
        ('{"name": "f", "arguments": {"x": 1}', [("f", '{"x": 1}')]),
        ('{"name": "f", "arguments": {"x": 1}, "why": {"a": [1]}}', [("f", '{"x": 1}')]),
        ('{"name": "f", "arguments": {"a": [True, False, None]}}', [("f", '{"a": [true, false, null]}')]),
        ('{"name": "f", "arguments": {"s": "a\n\tb\\d\\u00e9\\ud83d\\ude00\\"}"}}', None),
        ('{"name": "\\u0066", "arguments": {"x": -1.5e+3}}', [("f", '{"x": -1.5e+3}')]),
        ('{"name": "f", "arguments": {"x": 1}}<tool_call>{"name": "f"}', [("f", '{"x": 1}'), ("f", "{}")]),
    ],
)
def test_json_calls_mended(text: str, calls: Any) -> None:
    found = read_all(f"<tool_call>\n{text}\n</tool_call>")
    assert found.content == ""
    if calls is None:
        ((_, arguments),) = found.calls
        assert json.loads(arguments) == {"s": 'a\n\tb\\dé😀"}'}
    else:
        assert found.calls == calls


@pytest.mark.parametrize(
    "text",
    [
        "<tool_call>",
        "<tool_call>\n",
        "<tool_call>{",
        '<tool_call>{"name": "other", "arguments": {}}</tool_call>',
        '<tool_call>{"name": "f", "arguments": [1]}</tool_call>',
        '<tool_call>{"name": "f", "arguments": 7}</tool_call>',
        '<tool_call>{"name": "f", "arguments": "no object"}</tool_call>',
        '<tool_call>{"name": 5, "arguments": {}}</tool_call>',
        '<tool_call>{"arguments": {}}</tool_call>',
        '<tool_call>{"nam": "f", "arguments": {}}</tool_call>',
        '<tool_call>{"name": "f", "name": "f"}</tool_call>',
        '<tool_call>{"name": {"f": 1}}</tool_call>',
        "<tool_call>{'name': 'f'}</tool_call>",
        "<tool_call>f(x=1)</tool_call>",
        '<tool_call>{"name": "f"',
        "a < b <tool_cal",
        "</tool_call> a",
    ],
)
def test_what_is_no_call_is_content(text: str) -> None:
    for form in (Format.HERMES, Format.QWEN_XML):
        found = read_all(f"so: {text}\n", form)
        assert (found.content, found.calls) == (f"so: {text}\n", [])


@pytest.mark.parametrize(
    "text",
    [
        '{"age": 7, "name": "f"}',
        '[{"name": "f", "parameters": {}}]',
        ' {"name": "Bob"}',
        'see {"name": "f", "parameters": {}}',
        "<|python_tag|>print(1)",
        "<|python_tag|>",
        "<|python",
        '<|python_tag|> <|python_tag|>\n{"name": "x"}',
        "",
        " ;",
    ],
)
def test_what_is_no_call_of_llamas_is_content(text: str) -> None:
    found = read_all(text, Format.LLAMA)
    assert (found.content, found.calls) == (text, [])
    hidden = read_all(text, Format.LLAMA, special=frozenset({"<|python_tag|>"}))
    assert hidden.content == text.replace("<|python_tag|>", "")


def test_llamas_calls_behind_text_and_tags() -> None:
    call = '{"name": "f", "parameters": {"x": 1}}'
    found = read_all(f"first\n<|python_tag|>{call};\n <|python_tag|>{call} then", Format.LLAMA)
    assert (found.content, found.calls) == ("first then", [("f", '{"x": 1}')] * 2)
    found = read_all(f"{call}; not {call}", Format.LLAMA)
    assert (found.content, len(found.calls)) == (f"; not {call}", 1)


@pytest.mark.parametrize(
    ("text", "arguments", "content"),
    [
        ('{"x": 1, oops}}</tool_call>', '{"x": 1}', ", oops}}</tool_call>"),
        ('{"x": 1, "s": [1, {"b": tru}]}}', '{"x": 1, "s": [1, {}]}', '"b": tru}]}}'),
        ('{"x": 1]', '{"x": 1}', "]"),
        ('{"x": 1', '{"x": 1}', ""),
        ('{"x": 1, "s": "ab', '{"x": 1, "s": "ab"}', ""),
        ('{"x": 1, "s"', '{"x": 1}', ', "s"'),
        ('{"s": "a\\', '{"s": "a"}', "\\"),
        ('{"x": 12', '{"x": 12}', ""),
    ],
)
def test_a_call_that_breaks_off_is_closed(text: str, arguments: str, content: str) -> None:
    found = read_all(f'<tool_call>{{"name": "f", "arguments": {text}')
    assert (found.calls, found.content) == ([("f", arguments)], content)


@pytest.mark.parametrize(
    ("text", "form", "arguments"),
    [
        ('<tool_call>{"name": "f", "arguments": {"x": 1, "s": "a', Format.HERMES, '{"x": 1, "s": "a'),
        ('<tool_call>{"name": "f", "arguments": {"x": 12', Format.HERMES, "{"),
        ('{"name": "f", "parameters": {"a": [1, ', Format.LLAMA, '{"a": [1'),
        ("<tool_call><function=f><parameter=s>ab", Format.QWEN_XML, '{"s": "ab"'),
        ("<tool_call><function=f><parameter=s>ab</parameter>", Format.QWEN_XML, '{"s": "ab"'),
    ],
)
def test_a_call_that_is_cut_stays_open(text: str, form: Format, arguments: str) -> None:
    """Half of an argument must not pass for a whole one."""
    assert read_all(text, form, cut=True).calls == [("f", arguments)]
    with pytest.raises(ValueError, match=r"Expecting|Unterminated"):
        json.loads(arguments)


def test_a_whole_call_of_a_cut_text_is_whole() -> None:
    for text in ('{"name": "f", "arguments": {"x": 1}}', '{"name": "f", "arguments": {"x": 1}'):
        assert read_all(f"<tool_call>{text}", cut=True).calls == [("f", '{"x": 1}')]


def qwen(body: str, name: str = "f") -> str:
    return f"<tool_call>\n<function={name}>\n{body}</function>\n</tool_call>"


@pytest.mark.parametrize(
    ("text", "arguments"),
    [
        (qwen("<parameter=x>\n3\n</parameter>\n<parameter=s>\na\n\nb\n</parameter>\n"), {"x": 3, "s": "a\n\nb"}),
        (qwen("<parameter=x>3</parameter><parameter=s>3</parameter>"), {"x": 3, "s": "3"}),
        (qwen("<parameter=s>\n\n a \n\n</parameter>\n"), {"s": "\n a \n"}),
        (qwen("<parameter=s></parameter>\n"), {"s": ""}),
        (qwen("<parameter=x>\nthree\n</parameter>\n"), {"x": "three"}),
        (qwen("<parameter=s>\nnull\n</parameter>\n"), {"s": "null"}),
        (qwen('<parameter=a>\n[1, {"b": "c"}]\n</parameter>\n'), {"a": [1, {"b": "c"}]}),
        (
            qwen("<parameter=s>\n</function>\n<parameter=x> <</parameter></b>\n</parameter>\n"),
            {"s": "</function>\n<parameter=x> <</parameter></b>"},
        ),
        (qwen("<parameter=s>\na\n"), {"s": "a"}),
        (qwen("<parameter=s>\na\n</parameter>\n").replace("</function>", ""), {"s": "a"}),
        ("<tool_call>\n<function=f>\n<parameter=s>\na\n</tool_call>", {"s": "a"}),
        ("<function=f>\n<parameter=s>\na\n</parameter>\n</function>", {"s": "a"}),
        ("<tool_call><function=f><parameter=s>a", {"s": "a"}),
        ("<tool_call><tool_call>\n<function=f>\n</function>", {}),
        ('<tool_call>{"name": "f", "arguments": {"x": 3}}</tool_call>', {"x": 3}),
        (qwen(""), {}),
    ],
)
def test_xml_calls(text: str, arguments: Any) -> None:
    found = read_all(text, Format.QWEN_XML)
    ((name, written),) = found.calls
    assert (name, json.loads(written)) == ("f", arguments)
    assert found.content == "<tool_call>" * text.startswith("<tool_call><tool_call>")


@pytest.mark.parametrize(
    "text",
    [
        qwen("", "other"),
        qwen("junk"),
        "<tool_call><function=f",
        "<tool_call><function=>",
        "<function=f> and",
        "<function",
    ],
)
def test_what_is_no_xml_call_is_content(text: str) -> None:
    found = read_all(text, Format.QWEN_XML)
    assert (found.content, found.calls) == (text, [])


def test_spaces_around_calls_are_content_only_if_more_follows() -> None:
    call = '<tool_call>{"name": "g.h"}</tool_call>'
    for text, content in (
        (f"\n\n{call}\n", ""),
        (f"a \n{call}\n{call}\n", "a"),
        (f"a {call} b ", "a b "),
        (f"{call}\n\nb", "\n\nb"),
        ("a \n", "a \n"),
    ):
        assert read_all(text).content == content


def test_only_the_first_call() -> None:
    call = '<tool_call>{"name": "f", "arguments": {"x": 1}}</tool_call>'
    for size in SIZES:
        reader = Reading(tools=TOOLS, parallel=False).reader()
        found = read(reader, f"a {call} b {call}", size)
        assert (found.content, found.calls, reader.finished) == ("a", [("f", '{"x": 1}')], True)


def test_markers_that_are_special_tokens_are_never_content() -> None:
    special = frozenset({"<tool_call>", "</tool_call>", "<think>"})
    text = "<tool_call>{no}</tool_call> b</tool_call>"
    assert read_all(text, special=special, thoughts=False).content == "{no} b"


def told(form: Format, *pieces: str) -> list[str]:
    """What each piece makes certain of the arguments."""
    reader = Reading(form, TOOLS).reader()
    return ["".join(getattr(part, "text", "") for part in reader.push(piece)) for piece in pieces]


def test_arguments_come_as_soon_as_they_are_certain() -> None:
    """Text streams; anything typed waits until it is whole."""
    begin, end = "<tool_call>\n<function=f>\n<parameter=s>\n", "\n</parameter>"
    pieces = [begin, "ab", "c\n", "d", f"{end}\n<parameter=x>\n1", f"2{end}", "\n</function>"]
    assert told(Format.QWEN_XML, *pieces) == ['{"s": ', '"ab', "c", "\\nd", '", "x": ', "", "12}"]
    pieces = ['<tool_call>{"name": "f", "arguments": ', '{"s": ', '"ab', 'c", ', '"x": 1', "2}", "}"]
    assert told(Format.HERMES, *pieces) == ["", "{", '"s": "ab', 'c"', "", ', "x": 12}', ""]
