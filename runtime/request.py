"""What a client asks of the engine and what it is told back.

Knows nothing of text, HTTP, models or devices: prompts and answers are token ids.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from time import perf_counter
from typing import Protocol

from tandem.errors import TandemError
from tandem.runtime.guide import GuideMaker
from tandem.runtime.logprobs import TokenLogprob


@dataclass(frozen=True, slots=True)
class Sampling:
    """How a token is chosen from logits. Temperature 0 is greedy, `top_k` 0 or -1 is off.

    `seed` None means fresh noise for every request. `runtime.sampling` defines the draw.
    """

    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    seed: int | None = None


@dataclass(frozen=True, slots=True)
class Penalties:
    """What is changed of the logits before the draw; `runtime.penalties` defines how. The defaults change nothing.

    `logit_bias` holds (token id, what is added); `min_tokens` holds the answer's stop ids back.
    """

    repetition: float = 1.0
    presence: float = 0.0
    frequency: float = 0.0
    no_repeat_ngram_size: int = 0
    logit_bias: tuple[tuple[int, float], ...] = ()
    min_tokens: int = 0

    @property
    def counted(self) -> bool:
        """Whether it matters which tokens the text holds."""
        return self.repetition != 1 or self.presence != 0 or self.frequency != 0

    @property
    def neutral(self) -> bool:
        return not (self.counted or self.no_repeat_ngram_size or self.logit_bias or self.min_tokens)


@dataclass(frozen=True, slots=True)
class Request:
    """One answer wanted. `max_tokens` is clamped to the room that the context leaves behind the prompt; 0 reads it in.

    `speculate` False decodes one token a round; the answer is the same. `logprobs` asks for each token's, and for as
    many alternatives, `prompt_logprobs` for those of the prompt's tokens; the sink is then a `MeasuringSink`. `guides`
    change the logits in turn, after the penalties. `in_thoughts`: the answer begins inside a block of thoughts.
    """

    prompt: tuple[int, ...]
    max_tokens: int
    sampling: Sampling = field(default_factory=Sampling)
    stop_ids: frozenset[int] = frozenset()
    speculate: bool = True
    penalties: Penalties = field(default_factory=Penalties)
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    guides: tuple[GuideMaker, ...] = ()
    in_thoughts: bool = False


class FinishReason(StrEnum):
    """Why a lane ended; the earlier of STOP and LENGTH wins. TIMEOUT: the server's time for a request was over."""

    STOP = "stop"
    LENGTH = "length"
    TIMEOUT = "timeout"
    CANCELLED = "cancelled"
    ERROR = "error"


@dataclass(slots=True)
class LaneStats:
    """Counts and milliseconds of one request.

    `completion_tokens` counts every committed id, a stop id included; `drafted` and `accepted` count drafted
    nodes that were verified and that lay on the committed path; `rounds` leaves the prefill out.
    """

    prompt_tokens: int = 0
    completion_tokens: int = 0
    rounds: int = 0
    drafted: int = 0
    accepted: int = 0
    prefill_ms: float = 0.0
    decode_ms: float = 0.0


class Sink(Protocol):
    """Where an answer goes. Called in the engine's thread, so it must return at once; an exception cancels the lane."""

    def tokens(self, ids: list[int]) -> bool:
        """Newly committed ids in order, a stop id last. True: no more is needed, end with STOP."""
        ...

    def finished(self, reason: FinishReason, stats: LaneStats, error: TandemError | None) -> None:
        """Called exactly once, last; `error` is set when `reason` is ERROR."""
        ...


class MeasuringSink(Sink, Protocol):
    """A sink of requests that ask for `logprobs` or `prompt_logprobs`."""

    def prompt_measured(self, logprobs: Sequence[TokenLogprob]) -> None:
        """Those of the prompt's next tokens, from its second on; all of them come before the first of `tokens`."""
        ...

    def measured(self, logprobs: Sequence[TokenLogprob]) -> None:
        """Those of the ids that the next call of `tokens` brings."""
        ...


@dataclass(slots=True, eq=False)
class Ticket:
    """A submitted request, for `Engine.cancel`. `asked` is when, by `perf_counter`."""

    request: Request
    sink: Sink
    cancelled: bool = False
    asked: float = field(default_factory=perf_counter)
