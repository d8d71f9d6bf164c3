"""What a profile of few bits costs in quality, measured against the same checkpoint in fp32 before sealing.

Knows nothing of how it is measured. Our arithmetic is one, so that the figures repeat bit by bit.
"""

from __future__ import annotations

from typing import Literal

from tandem.artifacts.record import Capacity, Count, Number, Record

DIGITS = 6
"""Decimals of every figure, and of their differences: limits are compared with what is read."""


class TextLoss(Record, frozen=True):
    """Mean negative log-likelihood of a fixed text in nats a token."""

    name: Literal["prose", "code"]
    tokens: Capacity
    loss: Number
    reference_loss: Number

    @property
    def rise(self) -> float:
        return round(self.loss - self.reference_loss, DIGITS)


class Agreement(Record, frozen=True):
    """At how many positions of the texts both choose the same token, at all and where the reference is confident."""

    positions: Count
    equal: Count
    confident: Count
    confident_equal: Count

    @property
    def confident_share(self) -> float:
        """1 where the reference is nowhere confident."""
        return self.confident_equal / self.confident if self.confident else 1.0


class FreeGeneration(Record, frozen=True):
    """What came of greedy answers: how long, how many ended by themselves, how little they repeat themselves."""

    prompts: Count
    tokens: Count
    reference_tokens: Count
    stops: Count
    reference_stops: Count
    unique_4grams: Number
    reference_unique_4grams: Number

    @property
    def unique_4gram_drop(self) -> float:
        return round(self.reference_unique_4grams - self.unique_4grams, DIGITS)


class Quality(Record, frozen=True):
    """The record of a quality gate. `limits` are those it was held to, `held` whether all of them hold."""

    reference: Literal["fp32"]
    texts: tuple[TextLoss, ...]
    agreement: Agreement
    generation: FreeGeneration
    limits: dict[str, Number]
    held: bool

    def summary(self) -> str:
        """What the bits that were saved cost, in a line."""
        losses = ", ".join(f"{text.rise:+.4f} on {text.name}" for text in self.texts)
        return (
            f"loss {losses} (nats a token); {self.agreement.confident_share:.2%} of the confident choices are "
            f"{self.reference}'s; {self.generation.unique_4grams:.2%} new 4-grams in free answers, "
            f"{self.reference}'s {self.generation.reference_unique_4grams:.2%}"
        )

    def fault(self) -> str | None:
        """What cannot be true of these figures, or None."""
        a, g = self.agreement, self.generation
        if len({text.name for text in self.texts}) != len(self.texts):
            return "a text comes twice"
        if a.equal > a.positions or a.confident > a.positions or a.confident_equal > min(a.equal, a.confident):
            return "more positions agree than there are"
        if max(g.stops, g.reference_stops) > g.prompts:
            return "more answers end than there are prompts"
        return None
