"""A JSON value given out as it comes, such that it can be closed to valid JSON at any moment.

Knows nothing of calls.
"""

from __future__ import annotations

from tandem.runtime.reading.lexemes import Lexeme

_CLOSER = {"{": "}", "[": "]"}


class JsonText:
    """Follows one object through its lexemes. What only makes sense with a value behind it, a comma or a key, waits.

    `key` is the JSON text of the outermost object's key whose value is at hand, without quotes.
    """

    def __init__(self) -> None:
        self.key = ""
        self.in_string = False
        self._open: list[str] = []
        self._waiting: list[Lexeme] = []
        self._state = "value"
        self._is_key = False

    @property
    def depth(self) -> int:
        """How many objects and arrays are open."""
        return len(self._open)

    @property
    def waiting(self) -> str:
        """What waits, as it stood."""
        return "".join(lexeme.raw for lexeme in self._waiting)

    def closers(self, depth: int) -> str:
        """What closes all but the outermost `depth`."""
        quote = '"' if self.in_string and not self._is_key else ""
        return quote + "".join(_CLOSER[opener] for opener in reversed(self._open[depth:]))

    def take(self, lexeme: Lexeme) -> tuple[str, str] | None:
        """(what waited, this lexeme's own text) as valid JSON, both empty while they wait; None where it cannot be."""
        if self.in_string:
            return self._inside(lexeme)
        if lexeme.kind == "space":
            self._waiting.append(lexeme)
            return "", ""
        if lexeme.kind == "quote":
            return self._quote(lexeme)
        if lexeme.kind == "scalar":
            return self._value(lexeme, "after") if self._state in ("value", "value or close") else None
        return self._mark(lexeme) if lexeme.kind == "mark" else None

    def _inside(self, lexeme: Lexeme) -> tuple[str, str] | None:
        if lexeme.kind == "bad":
            return None
        if lexeme.kind == "quote":
            self.in_string = False
            self._state = "colon" if self._is_key else "after"
        if not self._is_key:
            return "", lexeme.out
        self._waiting.append(lexeme)
        if self.depth == 1 and lexeme.kind == "chars":
            self.key += lexeme.out
        return "", ""

    def _quote(self, lexeme: Lexeme) -> tuple[str, str] | None:
        self._is_key = self._state in ("key", "key or close")
        if self._is_key:
            self.in_string = True
            if self.depth == 1:
                self.key = ""
            self._waiting.append(lexeme)
            return "", ""
        if self._state not in ("value", "value or close"):
            return None
        self.in_string = True
        return self._value(lexeme, "after")

    def _mark(self, lexeme: Lexeme) -> tuple[str, str] | None:
        mark, state = lexeme.raw, self._state
        if mark in "{[":
            if state not in ("value", "value or close"):
                return None
            self._open.append(mark)
            return self._value(lexeme, "key or close" if mark == "{" else "value or close")
        if mark in "}]":
            closes = state in ("after", "key or close", "value or close") and _CLOSER[self._open[-1]] == mark
            if not closes:
                return None
            self._open.pop()
            return self._value(lexeme, "after")
        if mark == ":" and state == "colon":
            self._state = "value"
        elif mark == "," and state == "after":
            self._state = "key" if self._open[-1] == "{" else "value"
        else:
            return None
        self._waiting.append(lexeme)
        return "", ""

    def _value(self, lexeme: Lexeme, state: str) -> tuple[str, str]:
        waited, self._waiting = "".join(one.out for one in self._waiting), []
        self._state = state
        return waited, lexeme.out
