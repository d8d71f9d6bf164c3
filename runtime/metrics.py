"""Counters, gauges and histograms, and Prometheus' text format 0.0.4.

One thread writes an instrument and any may read it: no lock is taken, for the interpreter copies lists and dicts of
plain numbers whole. Knows nothing of what is counted.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import accumulate
from typing import Protocol

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
PREFIX = "tandem:"
OTHER = "other"
"""Stands for all values of a label beyond the most that it may have."""

Sample = tuple[str, Mapping[str, str], float]
"""Suffix of the family's name, labels, value."""


class Family(Protocol):
    """Samples under one name. `kind` is Prometheus' word for the type."""

    name: str
    text: str
    kind: str

    def samples(self) -> Iterator[Sample]: ...


class Counter:
    kind = "counter"

    def __init__(self, name: str, text: str) -> None:
        self.name, self.text = name, text
        self.value: float = 0

    def add(self, amount: float = 1) -> None:
        self.value += amount

    def samples(self) -> Iterator[Sample]:
        yield "", {}, self.value


class LabelledCounter:
    """A counter for each value of one label: those of `values` from the start, new ones up to `most` in all."""

    kind = "counter"

    def __init__(self, name: str, text: str, label: str, values: Iterable[str], *, most: int = 0) -> None:
        self.name, self.text = name, text
        self.values: dict[str, float] = dict.fromkeys(values, 0)
        self._label, self._most = label, most

    def add(self, value: str, amount: float = 1) -> None:
        if value not in self.values and len(self.values) >= self._most:
            value = OTHER
        self.values[value] = self.values.get(value, 0) + amount

    def samples(self) -> Iterator[Sample]:
        for value, count in self.values.copy().items():
            yield "", {self._label: value}, count


class Gauge:
    """What `read` says at the moment of asking."""

    kind = "gauge"

    def __init__(self, name: str, text: str, read: Callable[[], float]) -> None:
        self.name, self.text, self._read = name, text, read

    def samples(self) -> Iterator[Sample]:
        yield "", {}, self._read()


class Histogram:
    """Observations by fixed upper bounds, inclusive and ascending; those above the last one count as well."""

    kind = "histogram"

    def __init__(self, name: str, text: str, bounds: Sequence[float]) -> None:
        self.name, self.text = name, text
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self._sum = 0.0

    def observe(self, value: float) -> None:
        self._counts[bisect_left(self._bounds, value)] += 1
        self._sum += value

    @property
    def count(self) -> int:
        return sum(self._counts)

    def samples(self) -> Iterator[Sample]:
        # The total is that of the copy, so that buckets and count agree whatever is observed meanwhile.
        total, below = self._sum, list(accumulate(self._counts.copy()))
        for bound, count in zip((*self._bounds, math.inf), below, strict=True):
            yield "_bucket", {"le": _number(float(bound))}, count
        yield "_sum", {}, total
        yield "_count", {}, below[-1]


def exposition(families: Iterable[Family], labels: Mapping[str, str]) -> str:
    """The page that Prometheus reads; every sample carries `labels` besides its own."""
    lines = []
    for family in families:
        name = PREFIX + family.name
        lines.append(f"# HELP {name} {_escaped(family.text)}")
        lines.append(f"# TYPE {name} {family.kind}")
        for suffix, own, value in family.samples():
            pairs = ",".join(f'{key}="{_quoted(text)}"' for key, text in {**labels, **own}.items())
            lines.append(f"{name}{suffix}{{{pairs}}} {_number(value)}")
    return "\n".join([*lines, ""])


def _number(value: float) -> str:
    return {math.inf: "+Inf", -math.inf: "-Inf"}.get(value) or ("NaN" if math.isnan(value) else repr(value))


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace("\n", "\\n")


def _quoted(text: str) -> str:
    return _escaped(text).replace('"', '\\"')
