"""Routers that do as a test wants it, whatever it costs, and prices that are all the same.

Know nothing of costs.
"""

from __future__ import annotations

import random

from tandem.keys import Kind
from tandem.tree import DraftTree


class FreePrices:
    """Every pass costs the same; `seen` keeps what was observed."""

    def __init__(self) -> None:
        self.seen: list[tuple[int, Kind, int, float]] = []

    def ms(self, context: int, kind: Kind, rows: int) -> float:
        return 1.0

    def observe(self, context: int, kind: Kind, rows: int, ms: float) -> None:
        self.seen.append((context, kind, rows, ms))


class EvenRouter:
    """Every lane's first candidate, cut to an even share of the rows; `lanes` are those open."""

    def __init__(self) -> None:
        self.lanes: set[int] = set()

    def open(self, lane: int) -> None:
        assert lane not in self.lanes
        self.lanes.add(lane)

    def close(self, lane: int) -> None:
        self.lanes.remove(lane)

    def turn_pays(self, context: int, backlog: int, num_tokens: float, sync_ms: float) -> bool:
        return True

    def wants_model(self, *asked: object) -> bool:
        return True

    def choose(
        self, candidates: list[list[DraftTree]], contexts: list[int], max_rows: int, lanes: list[int], *more: object
    ) -> list[DraftTree]:
        assert set(lanes) <= self.lanes
        share = max_rows // len(candidates)
        return [trees[0].truncate(share) if trees else DraftTree.root(0) for trees in candidates]

    def rests(self, lane: int, context: int) -> int:
        return 0

    def settle(self, committed: list[list[int]], ms: float, asked_ms: float, host_ms: float) -> None:
        assert all(committed) and ms > 0 and asked_ms >= 0

    def passed(self, lanes: list[int], contexts: list[int], ms: float, asked_ms: float, host_ms: float) -> None:
        assert set(lanes) <= self.lanes and ms > 0 and asked_ms >= 0


class RandomRouter(EvenRouter):
    """Any candidate of each lane, cut anywhere that the rows allow."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self._random = random.Random(seed)

    def turn_pays(self, context: int, backlog: int, num_tokens: float, sync_ms: float) -> bool:
        assert 1 <= backlog <= context and num_tokens > 0 and sync_ms > 0
        return self._random.random() < 0.8

    def rests(self, lane: int, context: int) -> int:
        return self._random.randint(1, 6) if self._random.random() < 0.1 else 0

    def wants_model(self, *asked: object) -> bool:
        return self._random.random() < 0.6

    def choose(
        self, candidates: list[list[DraftTree]], contexts: list[int], max_rows: int, *more: object
    ) -> list[DraftTree]:
        spare, chosen = max_rows - len(candidates), []
        for trees in candidates:
            tree = self._random.choice(trees) if trees else DraftTree.root(0)
            chosen.append(tree.truncate(1 + self._random.randint(0, min(tree.num_drafted, spare))))
            spare -= chosen[-1].num_drafted
        return chosen
