"""The drafter's part of the self-check: guesses over a fixed text against what was sealed, bit by bit.

It leaves tokens in pages that no lane holds yet. Knows nothing of how bundles are opened.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass

from tandem.artifacts.reader import Bundle
from tandem.runtime.checks.draft_scenario import NAME, run
from tandem.runtime.checks.oracle import Digests, differing, sealed
from tandem.runtime.executor.base import Executor

log = logging.getLogger("tandem.runtime")


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


def holds(bundle: Bundle, executor: Executor) -> bool:
    """Whether the bundle has a drafter that guesses as it did when it was sealed; a warning for one that does not."""
    if bundle.geometry.drafter is None:
        return False
    check = probe(executor, sealed(bundle).get(NAME))
    if check.held:
        log.info("%s", check)
    else:
        log.warning("%s; it is off, answers are the same without: compile the bundle again on this machine", check)
    return check.held
