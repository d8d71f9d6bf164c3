"""Llama 3's calls: bare JSON that an answer begins with, or that follows `<|python_tag|>`; more behind `;` or spaces.

Knows nothing of calls' insides.
"""

from __future__ import annotations

from collections.abc import Callable, Collection

from tandem.runtime.reading.json_call import JsonCall
from tandem.runtime.reading.marks import Fork, Marks
from tandem.runtime.reading.parts import Closed, Content, Sign

PYTHON_TAG = "<|python_tag|>"
_BEHIND = r"[\s;]"


class LlamaCalls:
    """A `CallReader`. An answer that begins with other text holds a call only behind the tag."""

    def __init__(self, names: Collection[str]) -> None:
        self._names = names
        self._marks = Marks((PYTHON_TAG,))
        self._fork, self._tag = Fork(("{", PYTHON_TAG)), ""
        self._body: JsonCall | None = None
        self._signs: list[Sign] = []
        self._step: Callable[[str, int], int] = self._begin

    def push(self, text: str) -> list[Sign]:
        pos = 0
        while pos < len(text):
            pos = self._step(text, pos)
        return self._given()

    def end(self, *, cut: bool) -> list[Sign]:
        if self._body is not None:
            self._body.end(cut=cut)
            self._take(self._body)
        self._say(self._marks.flush() if self._step == self._content else self._tag + self._fork.flush())
        return self._given()

    def _begin(self, text: str, pos: int) -> int:
        marker, pos, decided = self._fork.read(text, pos)
        if not decided:
            return pos
        before = self._tag + self._fork.taken
        if marker == "{":
            # Spaces and a semicolon between two calls are nobody's; what stands before a text that is no call is its.
            self._body, self._step = JsonCall(self._names, before), self._inside
            self._body.read("{", 0)
        elif marker == PYTHON_TAG:
            self._say(self._tag)
            self._fork, self._tag = Fork(("{", PYTHON_TAG)), before.removeprefix(self._tag) + PYTHON_TAG
        else:
            self._say(before)
            self._step = self._content
        return pos

    def _content(self, text: str, pos: int) -> int:
        plain, marker, pos = self._marks.find(text, pos)
        self._say(plain)
        if marker is not None:
            self._fork, self._tag, self._step = Fork(("{", PYTHON_TAG)), PYTHON_TAG, self._begin
        return pos

    def _inside(self, text: str, pos: int) -> int:
        assert self._body is not None
        _, pos = self._body.read(text, pos)
        self._take(self._body)
        return pos

    def _take(self, body: JsonCall) -> None:
        self._signs += body.signs
        if body.done:
            is_call = bool(body.signs) and isinstance(body.signs[-1], Closed)
            self._step = self._begin if is_call else self._content
            self._body, self._fork, self._tag = None, Fork(("{", PYTHON_TAG), _BEHIND), ""
        body.signs.clear()

    def _say(self, text: str) -> None:
        if text:
            self._signs.append(Content(text))

    def _given(self) -> list[Sign]:
        given, self._signs = self._signs, []
        return given
