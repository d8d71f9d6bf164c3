"""What StairCut is measured against: a fixed width, and a node budget pruned at a straight price line.

Knows nothing of the staircase, and learns nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from tandem.keys import MAX_TREE_ROWS, Kind
from tandem.prices import PriceModel
from tandem.runtime.meter import Plain
from tandem.runtime.router.blend import Blend
from tandem.runtime.shares import even_shares
from tandem.tree import DraftTree


class FixedRouter:
    """Each lane's likeliest nodes, `rows` of them with the anchor, whatever they cost; fewer where lanes share."""

    def __init__(self, rows: int, *, declined: Callable[[Plain], None] = lambda reason: None) -> None:
        self._rows, self._declined = rows, declined
        self._round: list[tuple[int, bool]] = []  # lanes, and whether they had candidates

    def open(self, lane: int) -> None:
        pass

    def close(self, lane: int) -> None:
        pass

    def turn_pays(self, context: int, backlog: int, num_tokens: float, sync_ms: float) -> bool:
        return True

    def rests(self, lane: int, context: int) -> int:
        return 0

    def wants_model(
        self,
        candidates: Sequence[Sequence[DraftTree]],
        contexts: Sequence[int],
        max_rows: int,
        lanes: Sequence[int],
        source: str,
    ) -> bool:
        return True

    def choose(
        self,
        candidates: Sequence[Sequence[DraftTree]],
        contexts: Sequence[int],
        max_rows: int,
        lanes: Sequence[int],
        draft_ms: Mapping[str, float] | None = None,
    ) -> list[DraftTree]:
        blends = [Blend(trees, {}) for trees in candidates]
        spent, context = sum((draft_ms or {}).values()), max(contexts)
        kept = [self._kept(lane, blend, context, spent) for lane, blend in zip(lanes, blends, strict=True)]
        shares = even_shares([len(nodes) for nodes in kept], min(max_rows, MAX_TREE_ROWS) - len(lanes))
        self._round = [(lane, bool(trees)) for lane, trees in zip(lanes, candidates, strict=True)]
        if not any(kept):
            self._declined(Plain.PRICE)
        return [blend.tree(nodes[:share]) for blend, nodes, share in zip(blends, kept, shares, strict=True)]

    def passed(self, lanes: Sequence[int], contexts: Sequence[int], ms: float, asked_ms: float, host_ms: float) -> None:
        pass

    def settle(
        self, committed: Sequence[Sequence[int]], ms: float | None = None, asked_ms: float = 0.0, host_ms: float = 0.0
    ) -> None:
        for (lane, drafted), tokens in zip(self._round, committed, strict=True):
            self._learn(lane, drafted, len(tokens), ms)

    def _kept(self, lane: int, blend: Blend, context: int, spent: float) -> list[int]:
        """A lane's nodes, likeliest first."""
        return likeliest(blend)[: self._rows - 1]

    def _learn(self, lane: int, drafted: bool, num_tokens: int, ms: float | None) -> None:
        """A round's committed tokens and wall time."""


class BudgetRouter(FixedRouter):
    """A node stays while its chance pays for its share of a straight price line, up to a budget of rows.

    The budget is NARROW until a lane has committed AFTER tokens, so that short answers do not pay for branches, then
    WIDE.
    """

    NARROW, WIDE, AFTER = 16, 24, 32

    def __init__(self, prices: PriceModel, *, declined: Callable[[Plain], None] = lambda reason: None) -> None:
        super().__init__(self.WIDE, declined=declined)
        self._prices = prices
        self._committed: dict[int, int] = {}

    def open(self, lane: int) -> None:
        self._committed[lane] = 0

    def close(self, lane: int) -> None:
        self._committed.pop(lane, None)

    def _kept(self, lane: int, blend: Blend, context: int, spent: float) -> list[int]:
        budget = self.WIDE if self._committed[lane] >= self.AFTER else self.NARROW
        base, per_row = self._line(context)
        gained, ms, kept = 1.0, base + per_row + spent, list[int]()
        for node in likeliest(blend)[: budget - 1]:
            if blend.q[node] < gained / ms * per_row:
                break
            gained, ms = gained + blend.q[node], ms + per_row
            kept.append(node)
        return kept

    def _learn(self, lane: int, drafted: bool, num_tokens: int, ms: float | None) -> None:
        self._committed[lane] += num_tokens

    def _line(self, context: int) -> tuple[float, float]:
        """The straight line through the first and the last price of a tree: ms at no row, and a row's."""
        stairs = self._prices.per_rows(context, Kind.VERIFY_TREE)
        per_row = (stairs[-1] - stairs[1]) / (MAX_TREE_ROWS - 1)
        return stairs[1] - per_row, per_row


def likeliest(blend: Blend) -> list[int]:
    """The drafted nodes, likeliest first and every parent before its children."""
    return sorted(range(1, len(blend)), key=lambda node: -blend.q[node])
