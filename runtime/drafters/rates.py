"""How often a copied line goes on, given where it is from, how many tokens agree and how long it has been followed.

Counted online over every proposal, verified or not, from a table counted beforehand; knows nothing of trees or prices.
"""

from __future__ import annotations

import json
from bisect import bisect_right
from collections import Counter
from functools import cache
from pathlib import Path

LOCAL, CORPUS, STORE, BOTH = "local", "corpus", "store", "both"
"""Where a witness is from: the request itself, a corpus, the texts served before. BOTH is more than one of them."""
SOURCES = (LOCAL, CORPUS, STORE, BOTH)
AGREED = (2, 3, 4, 5, 6, 7, 8, 16, 32, 64, 128)
"""Lower ends of the bins of agreeing tokens."""
RUNS = (0, 1, 8, 24)
"""Lower ends of the bins of tokens that the text has followed the lookup's lines for."""
MAX_TRIALS = 4000.0
PRIOR_FILE = Path(__file__).with_name("copy-rates.json")
"""Counted by `bench/copy_rates.py`, which it names with what was read."""
MAX_WEIGHT, MIN_TRIALS = 50.0, 20.0
UNKNOWN = (5.0, 3.0)
"""Beta prior where not even the coarsest bin has MIN_TRIALS."""
AGREED_BINS = [bisect_right(AGREED, agreed) - 1 for agreed in range(AGREED[-1] + 1)]
RUN_BINS = [bisect_right(RUNS, run) - 1 for run in range(RUNS[-1] + 1)]

Key = tuple[str, int, int]
"""Source, bin of agreement, bin of run."""


class CopyRates:
    """Beta counts per source, agreement and run, shared by the lanes of an engine: one text teaches the next."""

    def __init__(self) -> None:
        self._prior = read_prior()
        self._counts = {key: [0.0, 0.0] for key in self._prior}  # went on, did not
        self._rates = {source: [[0.0] * len(RUNS) for _ in AGREED] for source in SOURCES}
        for (source, i, k), (a, b) in self._prior.items():
            self._rates[source][i][k] = a / (a + b)

    def rate(self, source: str, agreed: int, run: int) -> float:
        """Chance that the next token is one of those that followed, when `agreed` (>= 2) tokens agree."""
        return self._rates[source][AGREED_BINS[min(agreed, AGREED[-1])]][RUN_BINS[min(run, RUNS[-1])]]

    def ladder(self, source: str, agreed: int, run: int, steps: int) -> list[float]:
        """`rate` now, behind one more token that was copied right, and so on."""
        rates = self._rates[source]
        return [rates[i][k] for i, k in zip(*_bins(agreed, run, steps), strict=True)]

    def count(self, source: str, agreed: int, run: int, went_on: bool) -> None:
        """One more trial; old ones fade by halving once there are many."""
        self._add(source, AGREED_BINS[min(agreed, AGREED[-1])], RUN_BINS[min(run, RUNS[-1])], 1, went_on)

    def count_all(self, source: str, agreed: int, run: int, steps: int) -> None:
        """As many trials as `steps` that went on, each behind one more token."""
        for (i, k), trials in Counter(zip(*_bins(agreed, run, steps), strict=True)).items():
            self._add(source, i, k, trials, True)

    def _add(self, source: str, i: int, k: int, trials: int, went_on: bool) -> None:
        counts = self._counts[source, i, k]
        counts[not went_on] += trials
        if sum(counts) > MAX_TRIALS:
            counts[:] = counts[0] / 2.0, counts[1] / 2.0
        a, b = self._prior[source, i, k]
        self._rates[source][i][k] = (a + counts[0]) / (a + b + counts[0] + counts[1])


def _bins(agreed: int, run: int, steps: int) -> tuple[list[int], list[int]]:
    """The bins of `agreed` and `run` tokens, of one more each, and so on."""
    return _steps(AGREED_BINS, agreed, steps), _steps(RUN_BINS, run, steps)


def _steps(bins: list[int], first: int, steps: int) -> list[int]:
    found = bins[first : first + steps]
    return found + bins[-1:] * (steps - len(found))


@cache
def read_prior(path: Path = PRIOR_FILE) -> dict[Key, tuple[float, float]]:
    """A Beta prior per bin. One with too few trials takes those of all runs, then those of all sources as well."""
    trials = json.loads(path.read_text())["trials"]
    fine = {
        (source, i, k): tuple(trials.get(source, {}).get(f"{agreed}|{run}", (0, 0)))
        for source in SOURCES
        for i, agreed in enumerate(AGREED)
        for k, run in enumerate(RUNS)
    }
    prior = {}
    for source, i, k in fine:
        wider = (
            [(source, i, k)],
            [key for key in fine if key[:2] == (source, i)],
            [key for key in fine if key[1] == i],
        )
        sums = (tuple(map(sum, zip(*(fine[key] for key in keys), strict=True))) for keys in wider)
        went_on, ended = next((counts for counts in sums if sum(counts) >= MIN_TRIALS), UNKNOWN)
        # Neither sure nor hopeless, however many agree.
        went_on, ended = went_on + 0.5, ended + 0.5
        scale = min(1.0, MAX_WEIGHT / (went_on + ended))
        prior[source, i, k] = (went_on * scale, ended * scale)
    return prior
