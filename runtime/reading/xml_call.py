"""One call in Qwen's XML form: `<function=name>`, then `<parameter=key>` value `</parameter>` for each, `</function>`.

Values stand there as bare text, so their ends are read strictly: a value may hold the very tags that end values.
Knows nothing of what stands around the call.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping

from tandem.runtime.reading.parts import Closed, Content, Opened, Piece, Sign
from tandem.runtime.reading.values import Schema, typed, types_of

FUNCTION, PARAMETER, CALL = "<function=", "<parameter=", "<tool_call>"
END_VALUE, END_FUNCTION, END_CALL = "</parameter>", "</function>", "</tool_call>"

ENDS = ((END_VALUE, (PARAMETER, END_FUNCTION, END_CALL)), (END_FUNCTION, (END_CALL,)), (END_CALL, (CALL,)))
"""What ends a value, and what must come next or be the end: the first is the rule, models forget it now and then."""

# No tag needs more than a glance ahead, so at most 64 characters of whitespace stand between two.
_MAX_NULL = 64
_SPACE = re.compile(r"\s{0,64}")
_HEAD = re.compile(r"([^<>]{1,256})>\s{0,64}(?=<parameter=|</function>|</tool_call>)")
_BEGUN_HEAD = re.compile(r"[^<>]{0,256}(?:[^<>]>\s{0,64}(?:<[a-z/_]{0,11})?)?")


class XmlCall:
    """Reads from behind `<function=`; `signs` grow until it is `done`. A call of none of `tools` is content."""

    def __init__(self, tools: Mapping[str, Schema], opening: str = FUNCTION) -> None:
        """`opening` is what stood before, content if this is no call."""
        self.done = False
        self.signs: list[Sign] = []
        self._tools, self._opening = tools, opening
        self._text, self._pos, self._look = "", 0, 0
        self._step: Callable[[], bool] = self._head
        self._schema: Schema = {}
        self._value = Value("", frozenset())
        self._separator = "{"
        self._is_last = False

    def read(self, text: str, pos: int) -> tuple[str, int]:
        """Reads `text` from `pos` on; the text and the place where to go on once it is done."""
        if self._pos < len(self._text):
            self._look -= self._pos
            text, pos = self._text[self._pos :] + text[pos:], 0
        else:
            self._look = pos
        self._text, self._pos = text, pos
        while not self.done and self._step():
            pass
        return self._text, self._pos

    def end(self, *, cut: bool) -> tuple[str, int]:
        """No more text comes, because it was `cut` short or because the model ended it. As `read`."""
        self._is_last = True
        while not self.done and self._step():
            pass
        if self.done:
            return self._text, self._pos
        if not cut:
            self._close()
            if left := self._text[self._pos :]:  # a key without its end
                self.signs.append(Content(PARAMETER + left))
        self.done = True
        return "", 0

    def _head(self) -> bool:
        if match := _HEAD.match(self._text, self._pos):
            name = match.group(1).strip()
            if name in self._tools:
                self._schema = self._tools[name]
                self.signs.append(Opened(name))
                self._go(self._between, match.end())
                return True
        elif not self._is_last and _BEGUN_HEAD.fullmatch(self._text, self._pos):
            return False
        self.signs.append(Content(self._opening))
        self.done = True
        return False

    def _between(self) -> bool:
        if self._text.startswith(PARAMETER, self._pos):
            self._go(self._key, self._pos + len(PARAMETER))
            return True
        if self._text.startswith(END_FUNCTION, self._pos):
            self._pos += len(END_FUNCTION)
        elif self._pos == len(self._text):
            return False
        self._close()
        return False

    def _key(self) -> bool:
        end = self._text.find(">", self._look)
        if end < 0:
            self._look = len(self._text)
            return False
        key = self._text[self._pos : end].strip()
        self.signs.append(Piece(f"{self._separator}{json.dumps(key, ensure_ascii=False)}: "))
        self._separator = ", "
        self._value = Value(key, types_of(self._schema, key))
        self._go(self._in_value, end + 1)
        return True

    def _in_value(self) -> bool:
        while (place := self._text.find("<", self._look)) >= 0:
            ended = self._ends(place)
            if ended is None:
                self._add(place)
                self._look = place
                return False
            if ended >= 0:
                self._add(place)
                self._add_piece(self._value.end())
                self._go(self._between, ended)
                return True
            self._look = place + 1
        self._look = len(self._text)
        self._add(self._look, keep=self._is_last)
        if self._is_last:
            self._add_piece(self._value.end())
            self._step = self._between
        return False

    def _ends(self, place: int) -> int | None:
        """Where the text goes on if the value ends at `place`, -1 if it does not, None if more text must tell."""
        text = self._text
        for end, followers in ENDS:
            if text.startswith(end, place):
                space = _SPACE.match(text, place + len(end))
                after = space.end() if space else 0
                next_tag = text[after : after + len(PARAMETER) + 1]
                goes_on = after if end == END_VALUE else place
                if any(next_tag.startswith(tag) for tag in followers) or (self._is_last and not next_tag):
                    return goes_on
                return None if not self._is_last and any(tag.startswith(next_tag) for tag in followers) else -1
            if not self._is_last and end.startswith(text[place : place + len(end)]):
                return None
        return -1

    def _add(self, end: int, *, keep: bool = False) -> None:
        """The value's text up to `end`, but for one line's end just before it, which may belong to the tag."""
        if not keep and end > self._pos and self._text[end - 1] == "\n":
            end -= 1
        self._add_piece(self._value.push(self._text[self._pos : end]))
        self._pos = end

    def _add_piece(self, text: str) -> None:
        if text:
            self.signs.append(Piece(text))

    def _go(self, step: Callable[[], bool], pos: int) -> None:
        self._step, self._pos, self._look = step, pos, pos

    def _close(self) -> None:
        self.signs += [Piece("{}" if self._separator == "{" else "}"), Closed()]
        self.done = True


class Value:
    """One argument's bare text as JSON: a string as it comes, anything else once it is whole."""

    def __init__(self, key: str, types: frozenset[str]) -> None:
        self._types = types
        self._streams = types <= {"string", "null"} and "string" in types
        self._held: list[str] = []
        self._is_begun = self._is_string = False

    def push(self, text: str) -> str:
        if not text:
            return ""
        if not self._is_begun:  # a line's end behind the tag is part of it
            self._is_begun = True
            text = text.removeprefix("\n")
        if self._is_string:
            return _escaped(text)
        self._held.append(text)
        if not self._streams:
            return ""
        held = "".join(self._held)
        if "null" in self._types and len(held) <= _MAX_NULL and "null".startswith(held.strip()):
            return ""
        self._is_string = True
        return '"' + _escaped(held)

    def end(self) -> str:
        return '"' if self._is_string else typed("".join(self._held), self._types)


def _escaped(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)[1:-1]
