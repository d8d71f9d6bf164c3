"""A kernel's parameters, as C++ and Triton kernels alike declare them in one line of text."""

from __future__ import annotations

from dataclasses import dataclass

KINDS = {"<": "in", ">": "out", "!": "both", "=": "int", "~": "real"}


@dataclass(frozen=True, slots=True)
class Param:
    """One argument. `kind` is in, out, both (pointers), int or real."""

    name: str
    kind: str


Signature = tuple[Param, ...]


def parse(text: str) -> Signature:
    """The signature that words such as `<x >y =n ~eps` spell."""
    return tuple(Param(word[1:], KINDS[word[0]]) for word in text.split())
