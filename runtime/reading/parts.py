"""The parts that an answer's text falls into, and the smaller signs that readers of one format give.

Knows nothing of formats.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Content:
    """Text for the reader of the answer."""

    text: str


@dataclass(frozen=True, slots=True)
class Reasoning:
    """Text of the block of thoughts."""

    text: str


@dataclass(frozen=True, slots=True)
class CallOpened:
    """A call begins: the `index`-th of the answer, from 0."""

    index: int
    id: str
    name: str


@dataclass(frozen=True, slots=True)
class CallArguments:
    """A piece of the JSON text of a call's arguments."""

    index: int
    text: str


Part = Content | Reasoning | CallOpened | CallArguments


@dataclass(frozen=True, slots=True)
class Opened:
    """A call of the function `name`, which is one of those offered."""

    name: str


@dataclass(frozen=True, slots=True)
class Piece:
    """JSON text of the open call's arguments."""

    text: str


@dataclass(frozen=True, slots=True)
class Closed:
    """The open call is whole."""


Sign = Content | Opened | Piece | Closed


class CallReader(Protocol):
    """Reads calls of one format out of text; what is none is content. Takes time linear in the text."""

    def push(self, text: str) -> list[Sign]:
        """What `text` makes certain."""
        ...

    def end(self, *, cut: bool) -> list[Sign]:
        """What is left. An open call is closed to valid JSON, unless the text was `cut` short: then it stays open."""
        ...
