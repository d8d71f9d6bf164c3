"""The drafter's part of the self-check: guesses over a fixed text against what was sealed, bit by bit.

A model's rows leave taps, a sync reads them, a chain goes on. It leaves tokens in pages that no lane holds yet.
"""

from __future__ import annotations

from dataclasses import dataclass

from tandem.runtime.checks.drafting import DraftLab
from tandem.runtime.checks.lab import Lab, token_ids
from tandem.runtime.checks.oracle import Digests, differing
from tandem.runtime.executor.base import Executor
from tandem.runtime.rows import DraftSpan

NAME = "draft"
"""Its digests' name in the oracle."""
TOKENS, SYNCED, CHAIN = 12, 8, 4


@dataclass(frozen=True, slots=True)
class Probe:
    """How many digests were compared, and what differs."""

    compared: int
    from_oracle: tuple[str, ...] = ()

    @property
    def held(self) -> bool:
        """Nothing was compared where nothing was sealed: then nobody knows."""
        return self.compared > 0 and not self.from_oracle

    def __str__(self) -> str:
        if not self.compared:
            return "drafter: no guesses were sealed to compare with"
        if self.held:
            return f"drafter: {self.compared} comparisons, no bit differs"
        first = self.from_oracle[0]
        return (
            f"drafter: {len(self.from_oracle)} of {self.compared} digests differ from what was sealed, first: {first}"
        )


def probe(executor: Executor, oracle: Digests | None) -> Probe:
    """Holds the drafter of `executor` against its `oracle`. Where it does not hold, nobody should draft with it."""
    if oracle is None:
        return Probe(0)
    found = run(executor)
    return Probe(len(found), tuple(differing(found, oracle)))


def run(executor: Executor) -> Digests:
    """(what, digest) pairs in order, over the first lane."""
    lab = Lab(executor, 1)
    draft, ids = DraftLab(lab), token_ids(TOKENS + 1, executor.geometry.vocab_size, seed=43)
    seen = [("taps: logits", lab.extend(0, ids[:TOKENS], 0, 1, range(TOKENS))[0])]
    draft.sync(0, ids[1 : SYNCED + 1], 0, range(SYNCED))
    rows = DraftSpan(0, SYNCED, ids[SYNCED + 1 :], range(SYNCED, TOKENS), tap_out=TOKENS)
    (chain,) = draft.chains([rows], CHAIN)
    return seen + [(f"chain, guess {depth}", bits) for depth, bits in enumerate(chain, 1)]
