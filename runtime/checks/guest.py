"""One request of a crowd as it is served: what it should be given, what it was, and how long it has waited.

Knows nothing of engines and of other requests.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from tandem.errors import TandemError
from tandem.runtime.checks.crowd import MOST_TOKENS, Ask, Stage, Visit
from tandem.runtime.request import FinishReason, LaneStats, Request, Ticket


@dataclass(slots=True)
class Plain:
    """A sink with what is answered: the ids, and the rounds that they took."""

    ids: list[int] = field(default_factory=list)
    rounds: int = 0
    reason: FinishReason | None = None

    def tokens(self, ids: list[int]) -> bool:
        self.ids += ids
        return False

    def finished(self, reason: FinishReason, stats: LaneStats, error: TandemError | None) -> None:
        self.reason, self.rounds = reason, stats.rounds


def alone(ask: Ask) -> Request:
    """The request whose answer begins as every answer to `ask` does."""
    return Request(ask.prompt, MOST_TOKENS, ask.sampling, speculate=False, penalties=ask.penalties)


@dataclass(slots=True, eq=False)
class Guest:
    """A visit as a sink. `wanted` are the ids that it has alone, `chunks` the most prefill passes of its prompt.

    It is in `stage` since the round `since` and may wait there for `patience` rounds; behind the first token that is
    from one to the next. `got` ids were seen of it. `had` is how many it had when it hung up between two passes.
    """

    visit: Visit
    request: Request
    wanted: Sequence[int]
    chunks: int
    ids: list[int] = field(default_factory=list)
    stats: LaneStats = field(default_factory=LaneStats)
    reason: FinishReason | None = None
    ticket: Ticket | None = None
    stage: Stage = Stage.QUEUED
    since: int = 0
    patience: int = 0
    got: int = 0
    hung_up: bool = False
    had: int | None = None

    @classmethod
    def of(cls, visit: Visit, plain: Sequence[int], share: int) -> Guest:
        """A guest whose prompt has `share` rows of a pass at least; `plain` is the whole answer to what it asks."""
        stop_ids = frozenset(plain[visit.stop_at : visit.stop_at + 1] if visit.stop_at is not None else ())
        ask = visit.ask
        request = Request(ask.prompt, visit.max_tokens, ask.sampling, stop_ids, visit.speculate, ask.penalties)
        wanted = plain[: visit.max_tokens]
        end = next((i + 1 for i, token in enumerate(wanted) if token in stop_ids), len(wanted))
        return cls(visit, request, wanted[:end], -(-len(visit.ask.prompt) // share))

    @property
    def work(self) -> int:
        """Passes that it takes at most."""
        return self.chunks + self.request.max_tokens

    def leaves(self, now: int) -> bool:
        """Whether its time to hang up has come; one that was too fast for it leaves at once."""
        plan, order = self.visit.hang_up, list(Stage)
        if plan is None or self.hung_up:
            return False
        waited = self.got if plan.stage is Stage.DECODING else now - self.since
        further = order.index(self.stage) - order.index(plan.stage)
        return further > 0 or (further == 0 and waited >= plan.after)

    def faults(self) -> list[str]:
        """What of its end was not as promised, less the ids."""
        reason, ids, told, found = self.reason, len(self.ids), self.stats.completion_tokens, list[str]()
        right = FinishReason.STOP if self.wanted[-1] in self.request.stop_ids else FinishReason.LENGTH
        if reason is not (FinishReason.CANCELLED if self.hung_up else right):
            found.append(f"ended as {reason}, not {FinishReason.CANCELLED if self.hung_up else right}")
        if told != ids and not (self.hung_up and self.had is None):  # within a pass its tokens go nowhere
            found.append(f"was given {ids} ids and told of {told}")
        if self.had not in (None, ids):
            found.append(f"had {self.had} ids when it was cancelled and {ids} at its end")
        return found

    def astray(self) -> list[int]:
        """Places of its answer that are not as they are alone; of a cancelled one, of what it was given."""
        wanted = self.wanted[: len(self.ids)] if self.hung_up else self.wanted
        longest = max(len(wanted), len(self.ids))
        return [i for i in range(longest) if self.ids[i : i + 1] != list(wanted[i : i + 1])]

    def tokens(self, ids: list[int]) -> bool:
        self.ids += ids
        return False

    def finished(self, reason: FinishReason, stats: LaneStats, error: TandemError | None) -> None:
        self.reason, self.stats = reason, stats
