"""The sink between an engine and whoever reads the answer: ids become text in the engine's thread, events leave it.

Knows nothing of terminals or HTTP; `emit` decides how an event crosses to the reader's thread.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from time import monotonic

from tandem.errors import TandemError
from tandem.runtime.logprobs import TokenLogprob
from tandem.runtime.request import FinishReason, LaneStats
from tandem.runtime.text import TextStream
from tandem.runtime.thinking.block import ThoughtCount

PACE_SECONDS = 1 / 30
"""Least time between two events of one answer. To wake a reader costs the next round more than its share of the text:
the reader's thread takes a core from the team and the interpreter from the engine. Nobody reads faster than this."""


@dataclass(frozen=True, slots=True)
class Delta:
    """Text that became certain; `num_tokens` counts the answer's ids so far. `logprobs` are those of ids since.

    The first event of an answer has those of the `prompt`, from its second token on.
    `num_reasoning` are those of them that are reasoning; None of a model that does not think.
    """

    text: str
    num_tokens: int
    logprobs: tuple[TokenLogprob, ...] = ()
    prompt: tuple[TokenLogprob, ...] = ()
    num_reasoning: int | None = None


@dataclass(frozen=True, slots=True)
class End:
    """The last event: text still held back, and how the answer ended. `ids` are those up to the stop.

    `num_reasoning` as above.
    """

    text: str
    ids: tuple[int, ...]
    reason: FinishReason
    stats: LaneStats
    error: TandemError | None
    logprobs: tuple[TokenLogprob, ...] = ()
    prompt: tuple[TokenLogprob, ...] = ()
    num_reasoning: int | None = None


Event = Delta | End


def joined(deltas: Sequence[Delta], end: End) -> End:
    """A whole answer as one event."""
    events: list[Event] = [*deltas, end]
    text = "".join(event.text for event in events)
    logprobs = tuple(logprob for event in events for logprob in event.logprobs)
    return replace(end, text=text, logprobs=logprobs, prompt=events[0].prompt)


class Delivery:
    """A `Sink` that emits a `Delta` for the first round that has text, then one each `pace` seconds, then one `End`.

    Ids that come faster are gathered, except where a stop string may end the answer with any of them. `thoughts`
    counts those of a model that thinks, up to the stop.
    """

    def __init__(
        self,
        text: TextStream,
        emit: Callable[[Event], None],
        pace: float = PACE_SECONDS,
        thoughts: ThoughtCount | None = None,
    ) -> None:
        self._text, self._thoughts = text, thoughts
        self._emit = emit
        self._pace = 0.0 if text.has_stops else pace
        self._ids: list[int] = []
        self._pending: list[int] = []
        self._logprobs: list[TokenLogprob] = []  # of the ids that are not given out yet
        self._prompt: list[TokenLogprob] = []  # the same
        self._given = 0
        self._due = 0.0

    def measured(self, logprobs: Sequence[TokenLogprob]) -> None:
        self._logprobs += logprobs

    def prompt_measured(self, logprobs: Sequence[TokenLogprob]) -> None:
        self._prompt += logprobs

    def tokens(self, ids: list[int]) -> bool:
        self._pending += ids
        if self._pace and (now := monotonic()) < self._due:
            return False
        delta, stopped = self._read()
        if delta:
            self._emit(self._delta(delta))
            if self._pace:
                self._due = now + self._pace
        return stopped

    def finished(self, reason: FinishReason, stats: LaneStats, error: TandemError | None) -> None:
        delta, _ = self._read()
        text, ids, reasoning = delta + self._text.flush(), tuple(self._ids), self._num_reasoning()
        self._emit(End(text, ids, reason, stats, error, self._taken(), self._prompt_taken(), reasoning))

    def _delta(self, text: str) -> Delta:
        return Delta(text, self._text.num_tokens, self._taken(), self._prompt_taken(), self._num_reasoning())

    def _num_reasoning(self) -> int | None:
        return None if self._thoughts is None else self._thoughts.tokens

    def _taken(self) -> tuple[TokenLogprob, ...]:
        """Logprobs of the ids that were read and not given out, each once."""
        count = len(self._ids) - self._given
        taken, self._logprobs = tuple(self._logprobs[:count]), self._logprobs[count:]
        self._given = len(self._ids)
        return taken

    def _prompt_taken(self) -> tuple[TokenLogprob, ...]:
        taken, self._prompt = tuple(self._prompt), []
        return taken

    def _read(self) -> tuple[str, bool]:
        """Text of the ids gathered, and whether it has ended."""
        before, pending = self._text.num_tokens, self._pending
        delta, stopped = self._text.push(pending)
        read = pending[: self._text.num_tokens - before]
        if self._thoughts is not None:
            self._thoughts.add(read)
        self._ids += read
        self._pending = []
        return delta, stopped
