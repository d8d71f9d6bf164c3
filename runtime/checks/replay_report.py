"""What a replay says: a table per workload, each policy beside the oracle, and how far predictions held.

Knows nothing of how it was found.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tandem.runtime.checks.replay import DECILES, Tally
from tandem.runtime.checks.tables import table

ALL = "all"
FIXED = "fixed:"
REFERENCE, BOUND = "oracle", "prophet"


@dataclass(frozen=True, slots=True)
class ReplayReport:
    """Tallies by policy and workload."""

    found: Mapping[str, Mapping[str, Tally]]

    def whole(self, policy: str, workload: str) -> Tally:
        """A policy's tally of one workload, or of ALL."""
        if workload != ALL:
            return self.found[policy][workload]
        total = Tally()
        for tally in self.found[policy].values():
            total.add(tally)
        return total

    @property
    def workloads(self) -> list[str]:
        names = list(next(iter(self.found.values())))
        return [*names, ALL] if len(names) > 1 else names

    def facts(self) -> dict[str, Any]:
        return {workload: {name: self._facts(name, workload) for name in self.found} for workload in self.workloads}

    def lines(self) -> list[str]:
        head = ("workload", "policy", "tok/round", "rows", "ms/round", "tok/s", "x plain", "% oracle", "% bound")
        rows = []
        for workload in self.workloads:
            for name in self.found:
                tally = self.whole(name, workload)
                of = {other: self._share(tally, other, workload) for other in ("plain", REFERENCE, BOUND)}
                rounds = max(1, tally.rounds)
                cells = (tally.tokens / rounds, tally.rows / rounds, tally.ms / rounds, tally.rate)
                rows.append((workload, name, *cells, of["plain"] or "", *(_percent(of[o]) for o in (REFERENCE, BOUND))))
            if fixed := self._best_fixed(workload):
                rows.append((workload, f"best of these: {fixed}", *[""] * 7))
        lines = table(head, rows)
        if "staircut" in self.found:
            lines += ["", *self._promises()]
        return lines

    def _promises(self) -> list[str]:
        """StairCut's predictions against what came, and what it took of the host."""
        tally = self.whole("staircut", self.workloads[-1])
        rows = [
            (f"{tenth / DECILES:.1f}", said, float(came), said / came if came else 0.0)
            for tenth, (said, came) in enumerate(zip(tally.predicted, tally.accepted, strict=True))
        ]
        by_workload = ", ".join(f"{name} {self.whole('staircut', name).promise:.3f}" for name in self.workloads)
        host = statistics.median(tally.host_us) if tally.host_us else 0.0
        return [
            "staircut, drafted nodes by the chance it gave them:",
            *table(("from", "predicted", "accepted", "ratio"), rows),
            f"predicted over committed tokens a round: {by_workload}",
            f"router on the host: {host:.0f} us a round with candidates (median)",
        ]

    def _facts(self, name: str, workload: str) -> dict[str, Any]:
        tally = self.whole(name, workload)
        return {
            "rounds": tally.rounds,
            "drafted_rounds": tally.drafted_rounds,
            "tokens": tally.tokens,
            "rows": tally.rows,
            "ms": round(tally.ms, 3),
            "tokens_per_second": round(tally.rate, 3),
            "to_plain": self._share(tally, "plain", workload),
            "to_oracle": self._share(tally, REFERENCE, workload),
            "to_bound": self._share(tally, BOUND, workload),
            "predicted_to_committed": round(tally.promise, 4),
            "predicted": [round(said, 3) for said in tally.predicted],
            "accepted": tally.accepted,
            "host_us": round(statistics.median(tally.host_us), 1) if tally.host_us else 0.0,
        }

    def _share(self, tally: Tally, other: str, workload: str) -> float | None:
        if other not in self.found or not (rate := self.whole(other, workload).rate):
            return None
        return round(tally.rate / rate, 4)

    def _best_fixed(self, workload: str) -> str | None:
        """The fixed width that turns out best on the workload."""
        widths = [name for name in self.found if name.startswith(FIXED)]
        return max(widths, key=lambda name: self.whole(name, workload).rate) if len(widths) > 1 else None


def _percent(share: float | None) -> float | str:
    return "" if share is None else 100.0 * share
