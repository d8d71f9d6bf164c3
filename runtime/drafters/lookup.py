"""Copies instead of predicting: proposes what followed the last tokens earlier in the same request.

Knows nothing of prices, other lanes or the target model.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tandem.runtime.drafters.index import ORDERS, ContextIndex
from tandem.runtime.drafters.rates import CopyRates
from tandem.runtime.drafters.votes import poll, vote_line, vote_tree
from tandem.tree import DraftTree


class LookupDrafter:
    """Lookup over prompt and output of one lane. `min_order` (2 to 8) is the shortest match that may speak."""

    def __init__(self, rates: CopyRates | None = None, *, min_order: int = ORDERS[-1], window: int = 32_768) -> None:
        if not ORDERS[-1] <= min_order <= ORDERS[0]:
            raise ValueError(f"min_order is {min_order}, not one of {ORDERS[-1]} to {ORDERS[0]}")
        self._rates = rates or CopyRates()
        self._min_order = min_order
        self._index = ContextIndex(window)
        self._voters: tuple[list[int], int] = ([], 0)

    def begin(self, prompt: Sequence[int]) -> None:
        self._index.begin(prompt)
        self._voters = ([], 0)

    def propose(self, max_nodes: int) -> list[DraftTree]:
        """The vote tree and the deep line, or the line alone where the tree is a part of it."""
        places, agreed = self._voters = self._index.places(self._min_order)
        if not places or max_nodes < 1:
            return []
        tokens = self._index.tokens
        line = vote_line(tokens, places, agreed, self._rates, max_nodes)
        trees = [line] if line.num_drafted else []
        if len(places) > 1:
            tree = vote_tree(tokens, places, agreed, self._rates, max_nodes)
            if tree.num_drafted and not (tree.is_chain and tree.tokens == line.tokens[: len(tree)]):
                trees.insert(0, tree)
        return trees

    def sync(self, rows: Sequence[int]) -> None:
        """Nothing to do: lookup reads tokens, not hidden rows."""

    def observe(self, tokens: Sequence[int]) -> None:
        self._count(tokens)
        for token in tokens:
            self._index.append(token)

    def _count(self, tokens: Sequence[int]) -> None:
        """Scores the last proposal's voters against what came, up to the first step none of them foresaw."""
        (places, agreed), self._voters = self._voters, ([], 0)
        for depth, token in enumerate(tokens):
            votes = poll(self._index.tokens, places, tokens)
            if not votes:
                return
            self._rates.count(agreed + depth, token in votes)
            places = votes.get(token, [])


def lookup_drafters(*, min_order: int = ORDERS[-1], window: int = 32_768) -> Callable[[], LookupDrafter]:
    """A factory of drafters, one per lane, that share what they learn of how far copies go."""
    rates = CopyRates()
    return lambda: LookupDrafter(rates, min_order=min_order, window=window)
