"""A router and drafters that play a round exactly as a check wants it, whatever it costs.

Knows nothing of why.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import count

from tandem.runtime.checks.orders import every_order
from tandem.runtime.drafters.base import MODELS, Drafter
from tandem.runtime.drafters.lookup import lookup_drafters
from tandem.runtime.drafters.scripted import Guess, ScriptedDrafter
from tandem.tree import DraftTree

MIXED = 3


class FixedWidth:
    """Always the drafter's tree, cut so that all lanes together take `width` rows (at least one each).

    `shape` chain takes the longest line on offer.
    """

    def __init__(self, width: int, shape: str) -> None:
        self._width, self._shape = width, shape
        self._lanes: list[int] = []

    def lane_of(self, request: int) -> int:
        """The lane that the engine opened for its request number `request`."""
        return self._lanes[request]

    def open(self, lane: int) -> None:
        self._lanes.append(lane)

    def close(self, lane: int) -> None:
        pass

    def turn_pays(self, context: int, backlog: int, num_tokens: float, sync_ms: float) -> bool:
        return True

    def rests(self, lane: int, context: int) -> int:
        return 0

    def wants_model(
        self, candidates: list[list[DraftTree]], contexts: list[int], max_rows: int, lanes: list[int], source: str
    ) -> bool:
        return True

    def choose(
        self,
        candidates: list[list[DraftTree]],
        contexts: list[int],
        max_rows: int,
        lanes: list[int],
        draft_ms: Mapping[str, float] | None = None,
    ) -> list[DraftTree]:
        rows = shares(min(self._width, max_rows), len(candidates))
        picks = [self._pick(trees) for trees in candidates]
        return [tree.truncate(share) for tree, share in zip(picks, rows, strict=True)]

    def passed(self, lanes: list[int], contexts: list[int], ms: float, asked_ms: float, host_ms: float) -> None:
        pass

    def settle(self, committed: list[list[int]], ms: float, asked_ms: float, host_ms: float) -> None:
        pass

    def _pick(self, trees: list[DraftTree]) -> DraftTree:
        if self._shape == "chain":
            trees = [_line(tree) for tree in trees]
        return max(trees, key=len, default=DraftTree.root(0))


def _line(tree: DraftTree) -> DraftTree:
    """The first child of the anchor, its first child, and so on: of likelier children first, the likeliest line."""
    return tree.truncate(next((i for i, parent in enumerate(tree.parents) if parent != i - 1), len(tree)))


def shares(rows: int, lanes: int) -> list[int]:
    """`rows` dealt out to `lanes`, at least one each."""
    return [max(1, rows // lanes + (lane < rows % lanes)) for lane in range(lanes)]


def forced_drafters(
    name: str, shape: str, width: int, answers: Mapping[tuple[int, ...], Sequence[int]], vocab_size: int
) -> Callable[[], Drafter] | None:
    """Drafters called `name` (see `design.DRAFTERS`) whose drafts fill `width` rows of a lane; None drafts nothing.

    `answers` are the plain answers by prompt.
    """
    if name in ("none", *MODELS) or width < 2:
        return None
    if name == "lookup":
        return lookup_drafters()
    script, seeds = schedule(name, shape, width - 1), count()

    def make() -> Drafter:
        seed = next(seeds)
        turn = seed % len(script)  # lanes that begin together are not of one mind
        return ScriptedDrafter(answers, script[turn:] + script[:turn], vocab_size, seed)

    return make


def schedule(name: str, shape: str, nodes: int) -> list[Guess]:
    """Drafts of `nodes` nodes, round by round: none of them right, half of the line right, or all of the line right.

    Those of `mixed` have MIXED nodes at most: none, all wrong, all right, or a part right, in every order.
    """
    if name == "mixed":
        few = min(nodes, MIXED)
        part = Guess(1, 0, few - 1) if shape == "tree" else Guess(1, few - 1)
        return every_order((Guess(), Guess(0, few), Guess(few), part))
    branches = (nodes + 1) // 2 if shape == "tree" and nodes > 1 else 0
    line = nodes - branches
    if name == "wrong":
        return [Guess(0, line, branches)]
    if name == "right":
        return [Guess(line, 0, branches)]
    more, less = (line + 1) // 2, line // 2
    return [Guess(more, line - more, branches), Guess(less, line - less, branches)]
