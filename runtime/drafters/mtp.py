"""One lane's share of an MTP layer's drafts: what it guessed, the trees of that, what came of it.

An MTP layer reads the target's hidden state of a position and the token behind it, and guesses the token after that
(DeepSeek-V3, arXiv 2412.19437, section 2.2). Knows nothing of passes, of the ring, of prices or of other lanes.
"""

from __future__ import annotations

from collections.abc import Sequence

from tandem.runtime.drafters.base import MTP
from tandem.runtime.drafters.prob_deciles import ProbDeciles
from tandem.runtime.drafters.reader import Claim, TapReader
from tandem.runtime.rows import DraftSpan
from tandem.tree import DraftTree

LEAST = 0.02
"""Chances below it are not drafted, as in `votes`."""

Options = Sequence[tuple[int, float]]
"""Tokens that may come next and the head's probability of each, the likeliest first."""


class MtpDrafter(TapReader):
    """Drafts a chain of likeliest tokens, and what else is likely beside it, of the `guess`es given it each round."""

    BEHIND = 1

    def __init__(self, lane: int, claim: Claim, deciles: ProbDeciles) -> None:
        super().__init__(lane, claim)
        self._deciles = deciles
        self._guesses: list[Options] = []
        self._reach = 1.0

    def ahead(self, tap: int, tap_out: int) -> DraftSpan:
        """The row behind the chain so far, for whose position the layer has left its own in `tap`."""
        depth = len(self._guesses)
        token, _ = self._guesses[-1][0]
        return DraftSpan(self.lane, len(self.ids) - 2 + depth, (token,), (tap,), tap_out)

    def guess(self, options: Options) -> float:
        """What the layer gives behind the chain so far; the chance that the chain is right with one more of them."""
        self._guesses.append(options)
        self._reach *= self._deciles.rate(options[0][1])
        return self._reach

    def lose(self) -> list[int]:
        self._guesses = []
        return super().lose()

    def propose(self, max_nodes: int) -> list[DraftTree]:
        """The chain, and beside it what else is likely."""
        tokens, scores, leaves, reach = list[int](), list[float](), list[tuple[int, int, float]](), 1.0
        for depth, options in enumerate(self._guesses[:max_nodes]):
            chances = [(token, reach * self._deciles.rate(prob)) for token, prob in options]
            (token, reach), *others = chances
            if reach < LEAST:
                break
            tokens.append(token)
            scores.append(reach)
            leaves += [(depth, other, chance) for other, chance in others if chance >= LEAST]
        if not tokens:
            return []
        chain = DraftTree.chain(self.ids[-1], tokens, scores, MTP)
        return [_with_leaves(chain, leaves).truncate(max_nodes + 1) if leaves else chain]

    def observe(self, tokens: Sequence[int]) -> None:
        self._count(tokens)
        super().observe(tokens)

    def _count(self, tokens: Sequence[int]) -> None:
        """Scores the guesses against what came, as far as the chain was right and one further."""
        guesses, self._guesses, self._reach = self._guesses, [], 1.0
        for options, came in zip(guesses, tokens, strict=False):
            for token, prob in options:
                self._deciles.count(prob, token == came)
            if options[0][0] != came:
                return


def _with_leaves(chain: DraftTree, leaves: Sequence[tuple[int, int, float]]) -> DraftTree:
    """`chain` with more children, each (parent, token, score)."""
    parents, tokens, scores = (list(column) for column in zip(*leaves, strict=True))
    return DraftTree(
        chain.tokens + tokens, chain.parents + parents, chain.scores + scores, chain.sources + [MTP] * len(leaves)
    ).arranged()
