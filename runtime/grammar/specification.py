"""What form a client wants of an answer, in one of the languages that grammars come in.

Knows nothing of vocabularies, models or HTTP, nor of how a grammar is compiled.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from tandem.errors import RequestError

MAX_BYTES = 64 * 2**10
"""Longest text of a grammar. Compiling takes up to the square of it, and stack in proportion."""

SPACED: Mapping[str, Any] = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
"""JSON as `json.dumps` writes it: one space behind a comma and a colon, none elsewhere. Where whitespace is free, small
models write it without end; where there is none at all, they write what they have never read."""

COMPACT: Mapping[str, Any] = {"whitespace_flexible": False, "item_separator": ",", "key_separator": ":"}


class Language(StrEnum):
    """What the text of a specification is written in."""

    JSON_SCHEMA = "JSON schema"
    REGEX = "regular expression"
    LARK = "Lark grammar"
    GRAMMAR = "grammar"
    """Lark or GBNF, whichever it looks like."""


@dataclass(frozen=True, slots=True)
class Specification:
    """A grammar by its text. `options` are llguidance's for JSON; a schema's own `x-guidance` goes before them.

    `frame`, if there is one, is a Lark grammar of the whole answer, in which this one is called `@form`.
    """

    language: Language
    text: str
    options: Mapping[str, Any] = field(default_factory=lambda: SPACED)
    frame: str = ""

    def __post_init__(self) -> None:
        try:
            size = len(self.text.encode()) + len(self.frame.encode())
        except UnicodeEncodeError as error:
            raise RequestError(f"the {self.language} is not valid UTF-8 text") from error
        if size > MAX_BYTES:
            raise RequestError(f"the {self.language} has {size} bytes; at most {MAX_BYTES} are compiled")


def any_object(options: Mapping[str, Any] = SPACED) -> Specification:
    """Any JSON object."""
    return json_schema({"type": "object"}, options)


def json_schema(schema: str | Mapping[str, Any], options: Mapping[str, Any] = SPACED) -> Specification:
    """JSON that a schema, given as an object or as its text, accepts. Keys come in the schema's order."""
    if isinstance(schema, str):
        return Specification(Language.JSON_SCHEMA, schema, options)
    try:
        text = json.dumps(schema, ensure_ascii=False)
    except RecursionError as error:
        raise RequestError("the JSON schema is nested too deep") from error
    return Specification(Language.JSON_SCHEMA, text, options)


def regex(pattern: str) -> Specification:
    """Text that all of `pattern` matches, in the syntax of Rust's `regex`."""
    return Specification(Language.REGEX, pattern)


def choice(texts: Sequence[str]) -> Specification:
    """One of `texts`."""
    if not texts:
        raise RequestError("there is nothing to choose from; give at least one text")
    # One terminal: as rules, each would be an item of its own in every state.
    words = " | ".join(json.dumps(text, ensure_ascii=False) for text in texts)
    return Specification(Language.LARK, f"start: CHOICE\nCHOICE: {words}\n")


def grammar(text: str) -> Specification:
    """A grammar in Lark's syntax as llguidance has it, or in llama.cpp's GBNF."""
    return Specification(Language.GRAMMAR, text)


def lark(text: str) -> Specification:
    """A grammar in Lark's syntax. JSON in it (`%json {...}`) is spaced as its own `x-guidance` says: see SPACED."""
    return Specification(Language.LARK, text)
