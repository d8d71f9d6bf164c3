"""Drafts and rounds that tests of the router are made of."""

from __future__ import annotations

from typing import Any

from tandem.keys import Kind
from tandem.runtime.router.staircut import StairCut
from tandem.tree import DraftTree


def line(scores: list[float], anchor: int = 0, source: str = "local") -> DraftTree:
    return DraftTree.chain(anchor, list(range(10, 10 + len(scores))), scores, source)


def cut(
    router: StairCut, candidates: list[list[DraftTree]], contexts: list[int], max_rows: int = 32, lanes: Any = None
) -> list[DraftTree]:
    """What `choose` says, the plain step as its roots."""
    roots = [trees[0].truncate(1) if trees else DraftTree.root(-1) for trees in candidates]
    return router.choose(candidates, contexts, max_rows, lanes) or roots


def play(
    router: StairCut, tree: DraftTree, committed: list[int], *, lane: int = 0, ms: float | None = None
) -> DraftTree:
    """One round of one lane; what was drafted."""
    (picked,) = cut(router, [[tree]], [100], lanes=[lane])
    router.settle([committed], ms)
    return picked


def time_plain(router: StairCut, lane: int) -> None:
    """A plain round at its price, which is due where many have been drafted."""
    router.passed([lane], [100], router._prices.ms(100, Kind.EXTEND, 1), 0.0, 0.0)
