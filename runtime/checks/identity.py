"""Compares two bundles by the identity scenario, bit by bit, and each with what it was sealed with.

Knows nothing of how either was compiled.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from tandem.artifacts.reader import Bundle
from tandem.errors import BundleMismatch
from tandem.runtime.checks.lab import Lab, pages_for
from tandem.runtime.checks.oracle import Digests, differing, sealed
from tandem.runtime.checks.scenario import SCENARIOS, run_scenario
from tandem.runtime.checks.tables import table
from tandem.runtime.loading import open_executor


@dataclass(frozen=True, slots=True)
class Side:
    """One bundle, what it computes now and what it was sealed with."""

    bundle: Bundle
    found: Digests
    sealed: Digests

    def facts(self) -> dict[str, Any]:
        m = self.bundle.manifest
        about = {"path": str(self.bundle.path), "name": m.name, "profile": m.profile, "device": m.device}
        return about | {"build_id": m.build_id, "content_id": m.content_id}


@dataclass(frozen=True, slots=True)
class IdentityReport:
    """Differences of A from B, and of either from its own oracle, in the scenario's order."""

    scenario: str
    a: Side
    b: Side

    @property
    def columns(self) -> dict[str, list[str]]:
        return {
            "A differs from B": differing(self.a.found, self.b.found),
            "A from its oracle": differing(self.a.found, self.a.sealed),
            "B from its oracle": differing(self.b.found, self.b.sealed),
        }

    @property
    def held(self) -> bool:
        return not any(self.columns.values())

    def facts(self) -> dict[str, Any]:
        """The whole report as JSON takes it."""
        names = {"a_b": "A differs from B", "a_oracle": "A from its oracle", "b_oracle": "B from its oracle"}
        columns = self.columns
        return {
            "held": self.held,
            "scenario": self.scenario,
            "a": self.a.facts(),
            "b": self.b.facts(),
            "compared": len(self.a.found),
            "differing": {name: columns[column] for name, column in names.items()},
        }

    def lines(self) -> list[str]:
        """The report for a reader."""
        columns = self.columns
        passes = list(dict.fromkeys(_pass(what) for what, _ in [*self.a.found, *self.b.found]))
        rows = [
            (name, sum(_pass(what) == name for what, _ in self.a.found), *(_count(name, c) for c in columns.values()))
            for name in passes
        ]
        lines = [_title("A", self.a), _title("B", self.b), ""]
        lines += table((f"{self.scenario} scenario", "compared", *columns), rows)
        lines += ["", *(f"first: {column}: {items[0]}" for column, items in columns.items() if items)]
        digests = "equal in every bit" if self.held else "NOT EQUAL"
        return [*lines, f"{digests}: {len(self.a.found)} digests compared"]


def compare(a: Bundle, b: Bundle, threads: int | None = None) -> IdentityReport:
    """Runs the larger scenario that both hold on each. BundleMismatch if they hold none in common."""
    oracles = [sealed(a), sealed(b)]
    name = next((name for name in SCENARIOS if all(name in oracle for oracle in oracles)), None)
    if name is None:
        raise BundleMismatch(f"{a.path} and {b.path} were sealed with no scenario in common; compile them again")
    sides = [
        Side(bundle, take(bundle, name, threads), oracle[name]) for bundle, oracle in zip((a, b), oracles, strict=True)
    ]
    return IdentityReport(name, *sides)


def take(bundle: Bundle, name: str, threads: int | None) -> Digests:
    """The digests of scenario `name`, computed now."""
    sizes, g = SCENARIOS[name], bundle.geometry
    executor = open_executor(bundle, threads=threads, num_pages=pages_for(sizes.tokens, g.page_tokens, 1))
    try:
        return run_scenario(Lab(executor, 1), sizes)
    finally:
        executor.close()


def _pass(what: str) -> str:
    return re.sub(r", row \d+", "", what)


def _count(name: str, items: list[str]) -> int:
    return sum(_pass(what) == name for what in items)


def _title(name: str, side: Side) -> str:
    m = side.bundle.manifest
    return f"{name}: {side.bundle.path}  {m.name} {m.profile} {m.device}  build {m.build_id[:12]}"
