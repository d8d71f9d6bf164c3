"""What surrounds an engine whose lanes are checked: an executor that counts and can be hung up on, a whimsical router.

All of it is drawn, nothing measured, so that a run repeats itself. Knows nothing of what is right.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tandem.keys import Kind
from tandem.prices import PriceModel
from tandem.runtime.checks.watch import Watch
from tandem.runtime.drafters.base import Drafter
from tandem.runtime.drafters.lookup import lookup_drafters
from tandem.runtime.drafters.scripted import Guess, ScriptedDrafter
from tandem.runtime.executor.base import DraftOutcome, DraftRows, Executor, Moves, Outcome, Rows
from tandem.runtime.request import Ticket
from tandem.runtime.router.staircut import StairCut
from tandem.tree import DraftTree

AS_SERVED = 0.5
"""Share of rounds that are cut as served, and of lanes with the drafter that is."""


class Company(Watch):
    """An executor whose passes take what `prices` say. `shared` counts passes by how many lanes were in them.

    Tickets in `hang_ups` are cancelled while the next pass runs. `spent` is the milliseconds of all passes, `gap` the
    last one's first top-two gap.
    """

    def __init__(self, executor: Executor, prices: Mapping[str, Any]) -> None:
        super().__init__(executor)
        self._prices = PriceModel(prices)
        self.shared: Counter[int] = Counter()
        self.hang_ups: list[Ticket] = []
        self.spent, self.gap = 0.0, 0.0

    def run(self, kind: Kind, rows: Rows) -> Outcome:
        outcome = super().run(kind, rows)
        while self.hang_ups:
            self.hang_ups.pop().cancelled = True
        self.shared[len(set(rows.lane))] += 1
        self.gap = outcome.gap[0] if outcome.gap else 0.0
        outcome.ms = self._price(kind, max(rows.position) + 1, len(rows.token))
        return outcome

    def commit(self, moves: Moves) -> float:
        super().commit(moves)
        return self._price(Kind.COMMIT, max(moves.target) + 1, len(moves.lane))

    def draft(self, kind: Kind, rows: DraftRows) -> DraftOutcome:
        outcome = super().draft(kind, rows)
        outcome.ms = self._price(kind, max(rows.position) + 1, len(rows.token))
        return outcome

    def _price(self, kind: Kind, context: int, rows: int) -> float:
        ms = self._prices.ms(context, kind, rows)
        self.spent += ms
        return ms


class Whims:
    """Cuts rounds as they are served or, as often, anywhere: a candidate of each lane, as deep as it happens."""

    def __init__(self, company: Company, prices: Mapping[str, Any], seed: str) -> None:
        self._served = StairCut(PriceModel(prices), recurrent=company.num_slots > 0)
        self._company, self._random = company, random.Random(seed)
        self._began = 0.0
        self._chose = False
        self.lanes: set[int] = set()

    def open(self, lane: int) -> None:
        self.lanes.add(lane)
        self._served.open(lane)

    def close(self, lane: int) -> None:
        self.lanes.remove(lane)
        self._served.close(lane)

    def turn_pays(self, context: int, backlog: int, num_tokens: float, sync_ms: float) -> bool:
        return True

    def rests(self, lane: int, context: int) -> int:
        return 0

    def wants_model(
        self, candidates: list[list[DraftTree]], contexts: list[int], max_rows: int, lanes: list[int], source: str
    ) -> bool:
        return self._random.random() < AS_SERVED

    def choose(
        self,
        candidates: list[list[DraftTree]],
        contexts: list[int],
        max_rows: int,
        lanes: list[int],
        draft_ms: Mapping[str, float] | None = None,
    ) -> list[DraftTree]:
        self._began, self._chose = self._company.spent, self._random.random() < AS_SERVED
        if self._chose:
            return self._served.choose(candidates, contexts, max_rows, lanes, draft_ms)
        spare, chosen = max_rows - len(candidates), list[DraftTree]()
        for trees in candidates:
            tree = self._random.choice(trees) if trees else DraftTree.root(0)
            chosen.append(tree.truncate(1 + self._random.randint(0, min(tree.num_drafted, spare))))
            spare -= chosen[-1].num_drafted
        return chosen

    def passed(self, lanes: list[int], contexts: list[int], ms: float, asked_ms: float, host_ms: float) -> None:
        pass

    def settle(self, committed: list[list[int]], ms: float, asked_ms: float, host_ms: float) -> None:
        if self._chose:
            self._served.settle(committed, self._company.spent - self._began)


def mixed_drafters(
    answers: Sequence[Mapping[tuple[int, ...], Sequence[int]]], vocab_size: int, seed: str
) -> Callable[[], Drafter]:
    """Drafters as served, or ones that guess right, wrong, wide or not at all, as it happens.

    `answers` are plain ones by prompt, which the latter take one of: a prompt may have several.
    """
    chance, served = random.Random(seed), lookup_drafters()

    def make() -> Drafter:
        if chance.random() < AS_SERVED:
            return served()
        schedule = [
            Guess(chance.randint(0, 6), chance.randint(0, 3), chance.choice((0, 0, 2, 5)))
            for _ in range(chance.randint(1, 5))
        ]
        return ScriptedDrafter(chance.choice(answers), schedule, vocab_size, chance.randrange(2**32))

    return make
