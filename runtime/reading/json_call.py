"""One call written as JSON: `{"name": ..., "arguments": {...}}`, the keys in any order, `parameters` as good a name.

Knows nothing of what stands around it.
"""

from __future__ import annotations

import json
from collections.abc import Collection

from tandem.runtime.reading.json_text import JsonText
from tandem.runtime.reading.lexemes import Lexeme, Lexer
from tandem.runtime.reading.parts import Closed, Content, Opened, Piece, Sign

ARGUMENTS = ("arguments", "parameters")
OTHER = ("type", "id")
"""Keys that some models write beside; their values say nothing."""


class JsonCall:
    """Reads from an object's brace on; `signs` grow until it is `done`.

    What is no call of `names` is content as it stood. What breaks off once the call is open is closed to valid JSON,
    and the rest is content.
    """

    def __init__(self, names: Collection[str], opening: str = "") -> None:
        """`opening` is what stood before, content too if this is no call."""
        self.done = False
        self.signs: list[Sign] = []
        self._names = names
        self._lexer, self._json = Lexer(), JsonText()
        self._raw = [opening]  # all of it, while the call is not open
        self._string: list[str] = []  # of an outermost value that is one
        self._name: str | None = None
        self._pieces: list[str] = []  # arguments, while the call is not open
        self._seen: set[str] = set()
        self._is_open = self._is_whole = False

    def read(self, text: str, pos: int) -> tuple[str, int]:
        """Reads `text` from `pos` on; the text and the place where to go on once it is done."""
        while pos < len(text) and not self.done:
            lexeme, pos = self._lexer.next(text, pos)
            if lexeme is not None:
                self._take(lexeme)
        return text, pos

    def end(self, *, cut: bool) -> tuple[str, int]:
        """No more text comes, because it was `cut` short or because the model ended it. As `read`."""
        if cut and self._is_open and not self._is_whole:
            self.done = True
        if not self.done and (lexeme := self._lexer.flush()) is not None:
            self._take(lexeme)
        if not self.done:
            self._break("")
        return "", 0

    def _take(self, lexeme: Lexeme) -> None:
        if not self._is_open:
            self._raw.append(lexeme.raw)
        depth = self._json.depth
        taken = self._json.take(lexeme) if self._may_come(lexeme) else None
        if taken is None:
            self._break(lexeme.raw)
        elif self._json.depth == 0 < depth:
            self._close()
        elif max(depth, self._json.depth) > 1:
            if self._json.key in ARGUMENTS and not self._is_whole:
                self._argue((taken[0] if depth > 1 else "") + taken[1], whole=self._json.depth == 1)
        elif taken[1] and depth:
            self._outermost(lexeme)

    def _may_come(self, lexeme: Lexeme) -> bool:
        """Whether the object still looks like a call: known keys, once each. Once it is open, it may hold anything."""
        if self._is_open or lexeme.kind != "mark" or self._json.depth != 1:
            return True
        key, mark = self._json.key, lexeme.raw
        if mark != ":":
            return mark not in "{[" or (mark == "{" and key in ARGUMENTS)
        kind = ARGUMENTS[0] if key in ARGUMENTS else key
        known = kind in ("name", ARGUMENTS[0], *OTHER) and kind not in self._seen
        self._seen.add(kind)
        return known

    def _outermost(self, lexeme: Lexeme) -> None:
        """Part of a string, or a scalar, that is the value of one of the call's own keys."""
        key = self._json.key
        if self._is_whole and key in ARGUMENTS:
            return
        if lexeme.kind == "scalar":
            if key in ARGUMENTS and lexeme.out == "null":
                self._argue("{}", whole=True)
            elif key not in OTHER and not self._is_open:
                self._break("")
        elif lexeme.kind == "chars":
            self._string.append(lexeme.out)
        elif not self._json.in_string:
            value = json.loads(f'"{"".join(self._string)}"')
            self._string.clear()
            self._text_value(key, value)

    def _text_value(self, key: str, value: str) -> None:
        if key == "name" and not self._is_open:
            if value not in self._names:
                self._break("")
            else:
                self._name = value
                self._argue("", whole=self._is_whole)
        elif key in ARGUMENTS:  # some models write the object as a string
            if not _is_object(value):
                self._break("")
            else:
                self._argue(value, whole=True)

    def _argue(self, text: str, *, whole: bool) -> None:
        """More of the arguments. The call opens once they have begun and its name is known."""
        self._is_whole = whole
        if text:
            self._pieces.append(text)
        if self._name is None or not self._pieces:
            return
        if not self._is_open:
            self._is_open = True
            self._raw.clear()
            self.signs.append(Opened(self._name))
        self.signs.append(Piece("".join(self._pieces)))
        self._pieces.clear()

    def _close(self) -> None:
        if self._name is None:
            self._break("")
            return
        if not self._is_open:
            self._argue("{}", whole=True)
        self.signs.append(Closed())
        self.done = True

    def _break(self, rest: str) -> None:
        """`rest` cannot follow. It is taken; what comes behind it is nothing of this call's."""
        self.done = True
        if not self._is_open:
            self.signs.append(Content("".join(self._raw)))
            return
        if not self._is_whole:
            self.signs.append(Piece(self._json.closers(1)))
        self.signs.append(Closed())
        if (left := self._json.waiting + rest).strip():
            self.signs.append(Content(left))


def _is_object(text: str) -> bool:
    try:
        return isinstance(json.loads(text), dict)
    except (ValueError, RecursionError):
        return False
