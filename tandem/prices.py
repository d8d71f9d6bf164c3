"""Measured milliseconds of passes, and how they follow the live times.

A price is asked for by context length, kind and row count. Knows nothing of programs, drafts or bundles.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

from tandem.curve import FOLLOW, OUTLIER, Curve, towards
from tandem.errors import BundleCorrupt
from tandem.keys import FIRST_CONTEXT_CLASS, MAX_TREE_ROWS, Kind

FOLLOW_OWN = 0.02  # weight of a step of several lanes in its own price
LEAST_MS, MOST_MS = 1e-6, 1e9
PRIORS = ("plain", "spec", "prime")
STAND_INS = {
    Kind.EXTEND: (Kind.VERIFY_CHAIN, Kind.VERIFY_TREE),
    Kind.VERIFY_CHAIN: (Kind.VERIFY_TREE, Kind.EXTEND),
    Kind.VERIFY_TREE: (Kind.VERIFY_CHAIN, Kind.EXTEND),
    Kind.COMMIT: (),
    Kind.DRAFT: (),
    Kind.SYNC: (Kind.DRAFT,),
    Kind.SAMPLE: (),
    Kind.NEXT: (),
}


@dataclass(slots=True)
class LiveClass:
    """The curves of one context class and the drift they share: live over table of plain steps.

    Steps are measured most often, and a machine that is slow for a while is so for all passes. So the others are
    learned in proportion: what a draft costs in steps does not change with every slow spell.
    """

    curves: dict[Kind, Curve]
    priors: dict[str, float]
    drift: float
    num_samples: int = 0

    def common(self, kind: Kind) -> float:
        # A commit moves memory and reads no weights: the drift of passes says nothing of it.
        return 1.0 if kind is Kind.COMMIT or self.curves[kind].blind else self.drift


class PriceModel:
    """Prices of one bundle on one device.

    `table` has the shape of a bundle's `prices.json`: {"<class>": {"<kind>": {"<rows>": ms}, "plain": ms,
    "spec": ms, "prime": ms}, "step_ms": ms, "measured": text}; anything else raises BundleCorrupt naming the key.
    A context takes its class (powers of two from 1,024), else the nearest lower in the table, else the lowest.
    Without a table every pass starts at 1 ms and a commit at 0. Prices never fall with more rows. Not `live`, they stay
    the table's.
    """

    def __init__(
        self, table: Mapping[str, Any] | None = None, step_ms: float | None = None, *, live: bool = True
    ) -> None:
        self._table, own_step = read_table(table or {})
        self._step_ms = own_step if step_ms is None else step_ms
        self._follows = live
        self._live: dict[int, LiveClass] = {}

    def ms(self, context: int, kind: Kind, rows: int) -> float:
        """Milliseconds of a pass of `kind` with `rows` rows at `context` tokens."""
        live = self._class(context)
        curve, now, common = live.curves[kind], live.num_samples, live.common(kind)
        prices = curve.per_rows(now, common)
        if rows <= MAX_TREE_ROWS:
            return prices[rows]
        return max(prices[-1], curve.table(rows) * common * curve.over_all(now))

    def per_rows(self, context: int, kind: Kind) -> Sequence[float]:
        """ms at 0..32 rows."""
        live = self._class(context)
        return live.curves[kind].per_rows(live.num_samples, live.common(kind))

    def classes(self) -> list[int]:
        """The table's context classes, rising; without a table those that were met."""
        return sorted(self._table or tuple(self._live)) or [FIRST_CONTEXT_CLASS]

    def staircase(self, context: int, kind: Kind) -> Sequence[float]:
        """ms at 0..32 rows as they are now, for whoever looks on from another thread: nothing changes by it."""
        name = context_key(context)
        live = self._live.get(name) or self._fresh(name)
        return live.curves[kind].per_rows(live.num_samples, live.common(kind))

    def prior(self, context: int, name: str) -> float | None:
        """The table's `plain` (ms a step), `spec` (ms a drafted token) or `prime` (ms a backlog row)."""
        return self._class(context).priors.get(name)

    def observe(self, context: int, kind: Kind, rows: int, ms: float) -> None:
        """Follows one live time. Wider passes than a verify (prefill) are not followed."""
        if not (self._follows and 1 <= rows <= MAX_TREE_ROWS and 0.0 < ms < math.inf):
            return
        live = self._live.get(context_key(context)) or self._class(context)
        curve = live.curves[kind]
        live.num_samples += 1
        if kind is not Kind.EXTEND or curve.blind:
            curve.follow(rows, ms, live.num_samples, live.common(kind))
        elif rows == 1:
            table = curve.shape()[0]
            live.drift = towards(live.drift, min(ms / table, OUTLIER * live.drift), FOLLOW)
        else:  # one step of several lanes: mostly the drift of all steps, a little a price of its own
            surprise = curve.follow(rows, ms, live.num_samples, live.drift, FOLLOW_OWN)
            live.drift *= towards(1.0, surprise, FOLLOW)

    def _class(self, context: int) -> LiveClass:
        name = context_key(context)
        if name not in self._live:
            self._live[name] = self._fresh(name)
        return self._live[name]

    def _fresh(self, name: int) -> LiveClass:
        """A class as it is when it is first met: the table's, with the drift of the nearest lower one."""
        near = max((c for c in tuple(self._live) if c < name), default=None)
        drift = self._live[near].drift if near is not None else 1.0
        # Nearest lower first, then upwards; a kind the table lacks borrows its nearest kin.
        order = sorted(self._table, key=lambda c: (c > name, abs(c - name)))
        curves = {}
        for kind in Kind:
            points = next(
                (self._table[c].kinds[k] for k in (kind, *STAND_INS[kind]) for c in order if k in self._table[c].kinds),
                None,
            )
            flat = {1: 0.0 if kind is Kind.COMMIT else 1.0}
            rising = accumulate((points or flat).values(), max)
            step = None if points is None or kind is Kind.COMMIT else self._step_ms
            curves[kind] = Curve(list(points or flat), list(rising), step, blind=points is None)
        return LiveClass(curves, self._table[order[0]].priors if order else {}, drift)


@dataclass(slots=True)
class TableClass:
    kinds: dict[Kind, dict[int, float]]
    priors: dict[str, float]


def context_key(context: int) -> int:
    """The power-of-two context class of a length; the table's own last class may be clipped below it."""
    return FIRST_CONTEXT_CLASS if context <= FIRST_CONTEXT_CLASS else 1 << (context - 1).bit_length()


def read_table(table: Mapping[str, Any]) -> tuple[dict[int, TableClass], float | None]:
    """Checks a price table; BundleCorrupt names the first key that is wrong."""
    classes: dict[int, TableClass] = {}
    step_ms = None
    for key, value in _mapping(table, "the table").items():
        if key == "step_ms":
            step_ms = _number(value, key)
        elif key == "measured":
            if not isinstance(value, str):
                raise BundleCorrupt(f"prices: 'measured' is {value!r}, not a text; price the bundle again")
        else:
            classes[_count(key, 0, "a context class")] = _read_class(_mapping(value, key), key)
    return dict(sorted(classes.items())), step_ms


def _read_class(value: Mapping[str, Any], where: str) -> TableClass:
    read = TableClass({}, {})
    for key, entry in value.items():
        place = f"{where}.{key}"
        if key in PRIORS:
            read.priors[key] = _number(entry, place)
        elif key in list(Kind):
            least = 0.0 if key == Kind.COMMIT else LEAST_MS
            points = {
                _count(r, 1, f"a row count in '{place}'"): _number(ms, f"{place}.{r}", least)
                for r, ms in _mapping(entry, place).items()
            }
            if not points:
                raise BundleCorrupt(f"prices: '{place}' holds no row count; price the bundle again")
            read.kinds[Kind(key)] = dict(sorted(points.items()))
        else:
            raise BundleCorrupt(f"prices: '{place}' is neither a kind nor one of {', '.join(PRIORS)}")
    return read


def _mapping(value: Any, where: str) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise BundleCorrupt(f"prices: '{where}' is {value!r}, not an object; price the bundle again")
    return value


def _number(value: Any, where: str, least: float = 0.0) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not least <= value <= MOST_MS:
        raise BundleCorrupt(f"prices: '{where}' is {value!r}, not a time in milliseconds; price the bundle again")
    return float(value)


def _count(key: Any, least: int, what: str) -> int:
    if not (isinstance(key, str) and re.fullmatch("0|[1-9][0-9]{0,8}", key) and int(key) >= least):
        raise BundleCorrupt(f"prices: '{key}' is not {what}; price the bundle again")
    return int(key)
