"""What an entry is called: its kind and its full key.

Knows nothing of models, files or devices beyond their names.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

MAX_TREE_ROWS = 32
"""Rows of the widest verify: the anchor and at most 31 drafted nodes."""

FIRST_CONTEXT_CLASS = 1024


class Kind(StrEnum):
    """What a program does to the state. The names are those of the bundle's manifest."""

    EXTEND = "extend"
    VERIFY_CHAIN = "verify-chain"
    VERIFY_TREE = "verify-tree"
    COMMIT = "commit"
    DRAFT = "draft"
    SYNC = "sync"
    SAMPLE = "sample"
    NEXT = "next"


TARGET_KINDS = (Kind.EXTEND, Kind.VERIFY_CHAIN, Kind.VERIFY_TREE, Kind.COMMIT)
"""What every bundle has programs of."""
DRAFTER_KINDS = (Kind.DRAFT, Kind.SYNC)
"""What only bundles with a drafter that is a model have: a pass that guesses, one that only brings it up to date."""
LAUNCHED = (Kind.SAMPLE, Kind.NEXT)
"""What is only launched behind a pass, whose time it is part of: a draw, and what makes guesses a draft's next rows."""


@dataclass(frozen=True, slots=True)
class EntryKey:
    """The whole name of an entry, compared field by field.

    `context_class` is an upper bound of context length in tokens and `rows` the most rows of a pass;
    0 means "any": the program reads the length (CPU) or row count (CPU) from memory.
    """

    model: str
    profile: str
    device: str
    kind: Kind
    context_class: int = 0
    rows: int = 0
    part: str = "whole"


def context_classes(context_length: int) -> tuple[int, ...]:
    """Powers of two from 1,024 up that cover `context_length`, the last one clipped to it."""
    classes, bound = [], FIRST_CONTEXT_CLASS
    while bound < context_length:
        classes.append(bound)
        bound *= 2
    return (*classes, context_length)


def context_class(length: int, context_length: int) -> int:
    """The smallest class of `context_classes(context_length)` that holds `length` tokens."""
    return next((c for c in context_classes(context_length) if length <= c), context_length)
