"""Calls between `<tool_call>` and `</tool_call>`: Hermes' JSON and Qwen's XML form, told apart by how they begin.

Knows nothing of calls' insides.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from tandem.runtime.reading.json_call import JsonCall
from tandem.runtime.reading.marks import Fork, Marks
from tandem.runtime.reading.parts import Closed, Content, Sign
from tandem.runtime.reading.values import Schema
from tandem.runtime.reading.xml_call import CALL, END_CALL, FUNCTION, XmlCall

Body = JsonCall | XmlCall
Step = Callable[[str, int], tuple[str, int]]


class TaggedCalls:
    """A `CallReader`. `bare`: some models of the XML form leave `<tool_call>` out."""

    def __init__(self, tools: Mapping[str, Schema], *, bare: bool = False) -> None:
        self._tools = tools
        self._openers = (CALL, FUNCTION) if bare else (CALL,)
        self._marks = Marks(self._openers)
        self._fork = Fork(())
        self._body: Body | None = None
        self._signs: list[Sign] = []
        self._step: Step = self._content

    def push(self, text: str) -> list[Sign]:
        pos = 0
        while pos < len(text):
            text, pos = self._step(text, pos)
        return self._given()

    def end(self, *, cut: bool) -> list[Sign]:
        if self._body is not None:
            text, pos = self._body.end(cut=cut)
            self._take(self._body)
            return [*self._given(), *self.push(text[pos:]), *self.end(cut=cut)]
        if self._step == self._content:
            self._say(self._marks.flush())
        elif self._step == self._begin:
            self._say(CALL + self._fork.flush())
        else:
            self._say(self._fork.flush())
        return self._given()

    def _content(self, text: str, pos: int) -> tuple[str, int]:
        plain, marker, pos = self._marks.find(text, pos)
        self._say(plain)
        if marker is not None:
            self._open(marker)
        return text, pos

    def _open(self, marker: str) -> None:
        if marker == FUNCTION:
            self._body, self._step = XmlCall(self._tools), self._inside
        else:
            self._fork, self._step = Fork(("{", FUNCTION, CALL)), self._begin

    def _begin(self, text: str, pos: int) -> tuple[str, int]:
        marker, pos, decided = self._fork.read(text, pos)
        if not decided:
            return text, pos
        opening, self._step = CALL + self._fork.taken, self._inside
        if marker == "{":
            self._body = JsonCall(self._tools, opening)
            self._body.read("{", 0)
        elif marker == FUNCTION:
            self._body = XmlCall(self._tools, opening + FUNCTION)
        else:
            self._say(opening)
            self._step = self._content
            if marker is not None:
                self._open(marker)
        return text, pos

    def _inside(self, text: str, pos: int) -> tuple[str, int]:
        assert self._body is not None
        text, pos = self._body.read(text, pos)
        if not self._body.done:
            pos = len(text)
        self._take(self._body)
        return text, pos

    def _take(self, body: Body) -> None:
        """What `body` has to say; if that is all, what is behind a call is read as that."""
        self._signs += body.signs
        if body.done:
            is_call = bool(body.signs) and isinstance(body.signs[-1], Closed)
            self._step = self._behind if is_call else self._content
            self._body, self._fork = None, Fork((END_CALL, *self._openers))
        body.signs.clear()

    def _behind(self, text: str, pos: int) -> tuple[str, int]:
        marker, pos, decided = self._fork.read(text, pos)
        if decided:
            self._step = self._content
            if marker != END_CALL:
                self._say(self._fork.taken)
            if marker is not None and marker != END_CALL:
                self._open(marker)
        return text, pos

    def _say(self, text: str) -> None:
        if text:
            self._signs.append(Content(text))

    def _given(self) -> list[Sign]:
        given, self._signs = self._signs, []
        return given
