"""The sink between an engine and whoever reads the answer: ids become text in the engine's thread, events leave it.

Knows nothing of terminals or HTTP; `emit` decides how an event crosses to the reader's thread.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tandem.errors import TandemError
from tandem.runtime.request import FinishReason, LaneStats
from tandem.runtime.text import TextStream


@dataclass(frozen=True, slots=True)
class Delta:
    """Text that one round made certain; `num_tokens` counts the answer's ids so far."""

    text: str
    num_tokens: int


@dataclass(frozen=True, slots=True)
class End:
    """The last event: text still held back, and how the answer ended. `ids` are those up to the stop."""

    text: str
    ids: tuple[int, ...]
    reason: FinishReason
    stats: LaneStats
    error: TandemError | None


Event = Delta | End


class Delivery:
    """A `Sink` that emits one `Delta` a round that has text, then one `End`."""

    def __init__(self, text: TextStream, emit: Callable[[Event], None]) -> None:
        self._text = text
        self._emit = emit
        self._ids: list[int] = []

    def tokens(self, ids: list[int]) -> bool:
        before = self._text.num_tokens
        delta, stopped = self._text.push(ids)
        self._ids += ids[: self._text.num_tokens - before]
        if delta:
            self._emit(Delta(delta, self._text.num_tokens))
        return stopped

    def finished(self, reason: FinishReason, stats: LaneStats, error: TandemError | None) -> None:
        self._emit(End(self._text.flush(), tuple(self._ids), reason, stats, error))
