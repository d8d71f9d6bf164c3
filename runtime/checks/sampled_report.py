"""What a check of sampling found: texts that should be equal, and counts that should fit.

Knows nothing of how they came about.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

from tandem.runtime.checks.tables import table
from tandem.runtime.checks.trials import Trial

FALSE_ALARM = 1e-6
"""How often a sound bundle fails, nearly: all fits together, which share it evenly."""


@dataclass(slots=True)
class Texts:
    """Seeded answers of one drafter and shape against the plain ones."""

    answers: int = 0
    tokens: int = 0
    rounds: int = 0
    differing_ids: int = 0


@dataclass(slots=True)
class SampledReport:
    """Fills up part by part. `astray` says of the first seeded answer that left the plain one where it did.

    `repeated` counts answers without a seed that another one equals, though that is next to impossible.
    """

    texts: dict[tuple[str, str], Texts] = field(default_factory=dict)
    trials: list[Trial] = field(default_factory=list)
    repeated: int = 0
    astray: str | None = None

    @property
    def threshold(self) -> float:
        """What a fit's p may not fall below."""
        return FALSE_ALARM / max(1, len(self.trials))

    @property
    def misfits(self) -> list[Trial]:
        return [trial for trial in self.trials if trial.fit.p < self.threshold or trial.outside]

    @property
    def held(self) -> bool:
        return not (self.astray or self.misfits or self.repeated)

    def facts(self) -> dict[str, Any]:
        """The whole report as JSON takes it."""
        texts = [
            {"drafter": drafter, "shape": shape, **asdict(found)} for (drafter, shape), found in self.texts.items()
        ]
        return {
            "held": self.held,
            "texts": texts,
            "first_difference": self.astray,
            "trials": [asdict(trial) for trial in self.trials],
            "repeated": self.repeated,
            "false_alarm": FALSE_ALARM,
            "threshold": self.threshold,
        }

    def lines(self) -> list[str]:
        """The report for a reader."""
        head = ("drafter", "shape", "answers", "tokens", "rounds", "ids differ")
        rows = [(*key, t.answers, t.tokens, t.rounds, t.differing_ids) for key, t in self.texts.items()]
        fits = [
            (t.kind, t.where, t.sampling, t.draws, t.fit.statistic, t.fit.freedom, f"{t.fit.p:.2g}", t.outside)
            for t in self.trials
        ]
        lines = ["seeded answers against plain ones:", *table(head, rows), ""]
        lines += ["draws against the softmax in float64:"]
        lines += table(("what", "where", "sampling", "draws", "chi-square", "freedom", "p", "outside"), fits)
        lines.append(f"p may not fall below {self.threshold:.2g}: all in all one false alarm in {1 / FALSE_ALARM:,.0f}")
        lines += [f"first difference: {self.astray}"] if self.astray else []
        lines += [f"does not fit: {t.kind}, {t.where}, {t.sampling}" for t in self.misfits]
        lines += [f"{self.repeated} answers without a seed equal another"] if self.repeated else []
        ids = sum(found.differing_ids for found in self.texts.values())
        lines.append(f"{'held' if self.held else 'NOT HELD'}: {ids:,} differing ids, {len(self.misfits)} misfits")
        return lines
