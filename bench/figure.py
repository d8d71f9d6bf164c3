"""A figure of the benchmark: its series, the ratios and shares that it is about, and what they should reach.

Knows how a figure is printed and written as JSON, and nothing of how it was measured.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from spread import Goal, Spread


@dataclass(frozen=True, slots=True)
class Line:
    """One row of a figure's table. `unit` is "x", "%", "tok/s", "ms", "nats", ...; `note` stands behind it."""

    name: str
    spread: Spread
    unit: str
    goal: Goal | None = None
    note: str = ""

    @property
    def digits(self) -> int:
        """Places behind the point that are worth showing."""
        return {"x": 2, "s": 2, "nats": 6}.get(self.unit, 1)

    @property
    def missed(self) -> bool:
        """Whether there is a goal that is not reached."""
        return self.goal is not None and self.goal.verdict(self.spread.median) == "missed"

    def text(self) -> str:
        goal = ""
        if self.goal:
            goal = f"   [{self.goal}: {self.goal.verdict(self.spread.median)}]"
        note = f"   {self.note}" if self.note else ""
        return f"  {self.name:<44} {self.spread.text(self.digits)} {self.unit}{goal}{note}"

    def markdown(self) -> str:
        goal = f"{self.goal}: {self.goal.verdict(self.spread.median)}" if self.goal else ""
        return f"| {self.name.strip()} | {self.spread.text(self.digits)} {self.unit} | {goal} | {self.note} |"

    def record(self) -> dict[str, Any]:
        found: dict[str, Any] = {"name": self.name, "unit": self.unit} | self.spread.record()
        if self.goal:
            found["goal"] = str(self.goal)
            found["verdict"] = self.goal.verdict(self.spread.median)
        return found | ({"note": self.note} if self.note else {})


@dataclass(slots=True)
class Figure:
    """`identical` is None where no ids were compared; `absent` says which sides could not take part, and why."""

    name: str
    title: str
    lines: list[Line] = field(default_factory=list)
    identical: bool | None = None
    disturbed: str = ""
    absent: list[str] = field(default_factory=list)

    def text(self) -> str:
        parts = [f"{self.name}: {self.title}", *(line.text() for line in self.lines)]
        if self.identical is not None:
            parts.append(f"  same ids: {'yes' if self.identical else 'NO'}")
        parts += [f"  left out: {reason}" for reason in self.absent]
        return "\n".join(parts + ([f"  {self.disturbed}"] if self.disturbed else []))

    def markdown(self) -> str:
        """A table for `docs/measurements.md`."""
        parts = [f"**{self.title}** (`--only {self.name}`)", "", "| | | goal | |", "|---|---|---|---|"]
        parts += [line.markdown() for line in self.lines]
        parts += [f"| same ids | {'yes' if self.identical else 'NO'} | | |"] if self.identical is not None else []
        return "\n".join([*parts, ""])

    def record(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "title": self.title,
            "lines": [line.record() for line in self.lines],
            "identical": self.identical,
            "disturbed": self.disturbed,
            "absent": self.absent,
        }
