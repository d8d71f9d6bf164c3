"""JSON's lexemes out of text that comes in pieces; a string comes in as many as it likes.

Small slips that models make are mended on the way: raw control characters and stray backslashes in strings, Python's
names of constants. Knows nothing of what lexemes are for.
"""

from __future__ import annotations

import json
import re
from typing import Literal, NamedTuple

Kind = Literal["space", "mark", "quote", "chars", "scalar", "bad"]

_SPACE = re.compile(r"[ \t\r\n]+")
_PLAIN = re.compile(r'[^"\\\x00-\x1f]+')
_WORD = re.compile(r"[\w.+-]+", re.ASCII)
_SCALAR = re.compile(r"-?(?:0|[1-9]\d*)(?:\.\d+)?(?:[eE][+-]?\d+)?|true|false|null", re.ASCII)
_ESCAPE = re.compile(r'\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4})')
_BEGUN_ESCAPE = re.compile(r"\\(?:u[0-9a-fA-F]{0,3})?")
_PYTHON = {"True": "true", "False": "false", "None": "null"}


class Lexeme(NamedTuple):
    """`raw` as it stood and `out` as it stands in valid JSON. A mark is one of `{}[],:`, a quote begins or ends."""

    kind: Kind
    raw: str
    out: str


class Lexer:
    """Gives lexemes from a place of the text at hand; what is cut by its end waits inside, at most a scalar."""

    def __init__(self) -> None:
        self._in_string = False
        self._held = ""

    def next(self, text: str, pos: int) -> tuple[Lexeme | None, int]:
        """The next lexeme and where the text goes on; None when the text ended before one did.

        A bad lexeme of one character that could begin something else is left where it is.
        """
        return self._string(text, pos) if self._in_string else self._outside(text, pos)

    def flush(self) -> Lexeme | None:
        """The lexeme that only waited for more, once no more text comes."""
        held, self._held = self._held, ""
        if not held:
            return None
        return Lexeme("bad", held, "") if self._in_string else _scalar(held)

    def _outside(self, text: str, pos: int) -> tuple[Lexeme | None, int]:
        if word := _WORD.match(text, pos):
            self._held += word.group()
            pos = word.end()
        if self._held:
            return (None, pos) if pos == len(text) else (self.flush(), pos)
        character = text[pos]
        if space := _SPACE.match(text, pos):
            return Lexeme("space", space.group(), space.group()), space.end()
        if character == '"':
            self._in_string = True
            return Lexeme("quote", '"', '"'), pos + 1
        if character in "{}[],:":
            return Lexeme("mark", character, character), pos + 1
        return Lexeme("bad", "", ""), pos

    def _string(self, text: str, pos: int) -> tuple[Lexeme | None, int]:
        if self._held:
            return self._escape(text, pos)
        if plain := _PLAIN.match(text, pos):
            return Lexeme("chars", plain.group(), plain.group()), plain.end()
        character = text[pos]
        if character == '"':
            self._in_string = False
            return Lexeme("quote", '"', '"'), pos + 1
        if character == "\\":
            self._held = character
            return None, pos + 1
        return Lexeme("chars", character, json.dumps(character)[1:-1]), pos + 1

    def _escape(self, text: str, pos: int) -> tuple[Lexeme | None, int]:
        """One more character of an escape; a backslash that begins none becomes a backslash of the string."""
        begun = self._held + text[pos]
        if _BEGUN_ESCAPE.fullmatch(begun):
            self._held = begun
            return None, pos + 1
        held, self._held = self._held, ""
        if _ESCAPE.fullmatch(begun):
            return Lexeme("chars", begun, begun), pos + 1
        return Lexeme("chars", held, "\\" + held), pos


def _scalar(word: str) -> Lexeme:
    out = _PYTHON.get(word, word)
    return Lexeme("scalar" if _SCALAR.fullmatch(out) else "bad", word, out)
