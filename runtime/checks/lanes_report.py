"""What a lanes check found: counts by prefill size, who waited how long, memory, and what was not as promised.

Knows nothing of how requests were served.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, dataclass, field
from typing import Any

from tandem.runtime.checks.crowd import Stage
from tandem.runtime.checks.tables import table

FLAT_BYTES = 4 << 20
"""Growth that counts as none: allocators round and scatter. Over 2,000 requests it is 2 KB of each."""


@dataclass(slots=True)
class Tally:
    """Sums over the requests served with one prefill size."""

    requests: int = 0
    cancelled: int = 0
    rounds: int = 0
    tokens: int = 0
    drafted: int = 0
    accepted: int = 0
    differing_ids: int = 0


@dataclass(frozen=True, slots=True)
class Fault:
    """Something that was not as promised, in a wave whose last request is number `last`."""

    last: int
    what: str


@dataclass(slots=True)
class LanesReport:
    """Fills up request by request. `waits` are the most rounds: in the queue, to the first token, between two.

    `shared` counts passes by lanes, and `mixed` those of prompts and of lanes that decode. `memory` is the process's
    own bytes, by how many requests had ended.
    """

    lanes: int
    tallies: dict[int, Tally] = field(default_factory=dict)
    distinct: int = 0
    hung_up: Counter[Stage] = field(default_factory=Counter)
    refused: int = 0
    shared: Counter[int] = field(default_factory=Counter)
    mixed: int = 0
    waits: dict[Stage, int] = field(default_factory=lambda: dict.fromkeys(Stage, 0))
    memory: dict[int, int] = field(default_factory=dict)
    faults: int = 0
    first: Fault | None = None

    @property
    def held(self) -> bool:
        return not self.faults

    @property
    def growth(self) -> int | None:
        """Bytes that the process grew by behind the first measurement; None where there are not two."""
        sizes = list(self.memory.values())
        return sizes[-1] - sizes[0] if len(sizes) > 1 else None

    def tally(self, chunk: int) -> Tally:
        return self.tallies.setdefault(chunk, Tally())

    def blame(self, last: int, what: str) -> None:
        """Counts a fault and keeps the first."""
        self.faults += 1
        self.first = self.first or Fault(last, what)

    def waited(self, stage: Stage, rounds: int) -> None:
        self.waits[stage] = max(self.waits[stage], rounds)

    def facts(self) -> dict[str, Any]:
        """The whole report as JSON takes it."""
        return {
            "held": self.held,
            "lanes": self.lanes,
            "distinct": self.distinct,
            "rows": [{"chunk": chunk, **asdict(tally)} for chunk, tally in sorted(self.tallies.items())],
            "cancelled": {stage.value: self.hung_up[stage] for stage in Stage},
            "refused": self.refused,
            "passes_by_lanes": dict(sorted(self.shared.items())),
            "mixed_passes": self.mixed,
            "longest_waits": {stage.value: rounds for stage, rounds in self.waits.items()},
            "memory": self.memory,
            "growth": self.growth,
            "faults": self.faults,
            "first_fault": asdict(self.first) if self.first else None,
        }

    def lines(self) -> list[str]:
        """The report for a reader."""
        head = ("chunk", "requests", "cancelled", "rounds", "tokens", "drafted", "accepted", "ids differ")
        rows = [
            (chunk, t.requests, t.cancelled, t.rounds, t.tokens, t.drafted, t.accepted, t.differing_ids)
            for chunk, t in sorted(self.tallies.items())
        ]
        total = [sum(getattr(tally, name) for tally in self.tallies.values()) for name in Tally.__slots__]
        lines = [*table(head, rows), ""]
        lines.append(f"passes by lanes: {', '.join(f'{n}: {count:,}' for n, count in sorted(self.shared.items()))}")
        lines.append(f"mixed passes, of prompts and of lanes that decode: {self.mixed:,}")
        stages = ", ".join(f"{self.hung_up[stage]:,} {stage}" for stage in Stage)
        lines.append(f"cancelled: {stages}; refused at a full queue and asked again: {self.refused:,} times")
        waits = self.waits
        lines.append(
            f"longest waits in rounds: {waits[Stage.QUEUED]} in the queue, {waits[Stage.PREFILL]} from a lane to the "
            f"first token, {waits[Stage.DECODING]} between two"
        )
        lines.append(self._memory())
        if self.first:
            lines.append(f"first: {self.first.what}")
        lines.append(
            f"{'held' if self.held else 'NOT HELD'}: {total[0]:,} requests of {self.distinct} kinds, "
            f"{total[-1]:,} differing ids, {self.faults:,} faults"
        )
        return lines

    def _memory(self) -> str:
        if self.growth is None:
            return "memory: not measured (no Linux, or too few requests)"
        (early, then), *_, (late, now) = self.memory.items()
        return (
            f"memory: {then / 1e6:.1f} MB after {early} requests, {now / 1e6:.1f} MB after {late:,}, "
            f"{self.growth / 1e6:+.2f} MB"
        )
