"""What a spec check found: counts by drafter and shape, what really ran, and the first difference.

Knows nothing of how answers were made.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from typing import Any

from tandem.keys import TARGET_KINDS, Kind
from tandem.runtime.checks.design import Case
from tandem.runtime.checks.proof import Report as ProofReport
from tandem.runtime.checks.tables import table
from tandem.runtime.checks.watch import Recording


@dataclass(slots=True)
class Tally:
    """Sums over the answers of one drafter and shape; `rounds` leave prefills out."""

    runs: int = 0
    rounds: int = 0
    tokens: int = 0
    differing_ids: int = 0
    compared_bits: int = 0
    differing_bits: int = 0

    @property
    def tokens_a_round(self) -> float:
        return (self.tokens - self.runs) / self.rounds if self.rounds else 0.0


@dataclass(frozen=True, slots=True)
class Difference:
    """The first place where an answer left the plain one. `gap` is the plain run's top-two gap there."""

    number: int
    case: Case
    lane: int
    what: str
    position: int
    wanted_id: int
    found_id: int | None
    gap: float

    def __str__(self) -> str:
        return (
            f"case {self.number} ({self.case}), lane {self.lane}, position {self.position}: {self.what} differs; "
            f"id {self.wanted_id} wanted, {self.found_id} found, top-two gap {self.gap:.3g}"
        )


@dataclass(slots=True)
class SpecReport:
    """Fills up case by case; `tokens` ids of each answer are compared."""

    tokens: int
    tallies: dict[tuple[str, str], Tally] = field(default_factory=dict)
    passes: Counter[tuple[Kind, int]] = field(default_factory=Counter)
    lanes: set[int] = field(default_factory=set)
    threads: set[int] = field(default_factory=set)
    first: Difference | None = None
    proof: ProofReport | None = None

    @property
    def held(self) -> bool:
        return self.first is None and not (self.proof and self.proof.differing)

    def compare(self, number: int, case: Case, lane: int, wanted: Recording, found: Recording) -> None:
        """Counts what of `found` is not as in `wanted`: ids, and bits as long as the text is the same."""
        tally = self.tallies.setdefault((case.drafter, case.shape), Tally())
        tally.runs += 1
        tally.rounds += found.stats.rounds
        tally.tokens += found.stats.completion_tokens
        self.lanes.add(case.lanes)
        if case.threads is not None:
            self.threads.add(case.threads)
        ids = found.ids[: self.tokens] + [None] * (self.tokens - len(found.ids))
        astray = [i for i in range(self.tokens) if ids[i] != wanted.ids[i]]
        same = astray[0] if astray else self.tokens - 1
        moved: list[tuple[int, str]] = []
        for what, bits, right in (("state", found.states, wanted.states), ("logits", found.logits, wanted.logits)):
            comparable = [i for i in bits if i <= same]
            tally.compared_bits += len(comparable)
            moved += [(i, what) for i in comparable if bits[i] != right[i]]
        tally.differing_ids += len(astray)
        tally.differing_bits += len(moved)
        if self.first is None and (moved or astray):
            # At one place the state comes before the logits and these before the id.
            i, what = min([*moved, *((i, "id") for i in astray)], key=_order)
            position = len(wanted.prompt) + i
            self.first = Difference(number, case, lane, what, position, wanted.ids[i], ids[i], wanted.gaps[i])

    def facts(self) -> dict[str, Any]:
        """The whole report as JSON takes it."""
        rows = [
            {"drafter": drafter, "shape": shape, **asdict(tally), "tokens_a_round": round(tally.tokens_a_round, 2)}
            for (drafter, shape), tally in sorted(self.tallies.items())
        ]
        return {
            "held": self.held,
            "rows": rows,
            "widths": {kind.value: self._widths(kind) for kind in TARGET_KINDS if kind is not Kind.COMMIT},
            "lanes": sorted(self.lanes),
            "threads": sorted(self.threads),
            "proof": asdict(self.proof) if self.proof else None,
            "first_difference": asdict(self.first) if self.first else None,
        }

    def lines(self) -> list[str]:
        """The report for a reader."""
        head = ("drafter", "shape", "runs", "rounds", "tokens", "a round", "ids differ", "bits compared", "bits differ")
        rows = [
            (*key, t.runs, t.rounds, t.tokens, t.tokens_a_round, t.differing_ids, t.compared_bits, t.differing_bits)
            for key, t in sorted(self.tallies.items())
        ]
        lines = [*table(head, rows), ""]
        widths = "; ".join(f"{kind} {_ranges(self._widths(kind))}" for kind in (Kind.VERIFY_CHAIN, Kind.VERIFY_TREE))
        teams = f"; threads {_ranges(self.threads)}" if self.threads else ""
        lines.append(f"rows: {widths}; lanes {_ranges(self.lanes)}{teams}")
        if self.proof:
            lines.append(
                f"rows against one-token steps: {self.proof.cases:,} compared, {self.proof.differing:,} differ"
            )
            lines += [f"  first: {name}" for name in self.proof.first[:1]]
        if self.first:
            lines.append(f"first difference: {self.first}")
        ids = sum(tally.differing_ids for tally in self.tallies.values())
        bits = sum(tally.differing_bits for tally in self.tallies.values())
        lines.append(f"{'held' if self.held else 'NOT HELD'}: {ids:,} differing ids, {bits:,} differing bits")
        return lines

    def _widths(self, kind: Kind) -> list[int]:
        return sorted({rows for ran, rows in self.passes if ran is kind})


def _order(place: tuple[int, str]) -> tuple[int, int]:
    return place[0], ("state", "logits", "id").index(place[1])


def _ranges(numbers: Iterable[int]) -> str:
    """Numbers as text, neighbours joined: 1-4, 8."""
    runs: list[list[int]] = []
    for number in sorted(numbers):
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return ", ".join(str(a) if a == b else f"{a}-{b}" for a, b in runs) or "none"
