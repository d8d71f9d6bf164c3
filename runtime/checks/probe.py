"""The drafter's part of the self-check: guesses over a fixed text against what was sealed, bit by bit.

It leaves tokens in pages that no lane holds yet. Knows nothing of files.
"""

from __future__ import annotations

from dataclasses import dataclass

from tandem.runtime.checks.draft_scenario import run
from tandem.runtime.checks.oracle import Digests, differing
from tandem.runtime.executor.base import Executor


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
