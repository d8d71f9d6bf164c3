"""How two tables of prices differ: per context class and kind the row count whose price moved most.

Knows nothing of how they were measured.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, TypeGuard

from tandem.artifacts.diff.change import Change, walk

TOPIC = "prices"


def price_changes(before: dict[str, Any], after: dict[str, Any]) -> Iterator[Change]:
    """Changes of two `prices.json`; a ratio below 1 means that the second is faster."""
    for name in sorted(before.keys() | after.keys(), key=lambda key: (not key.isdecimal(), len(key), key)):
        one, two = before.get(name), after.get(name)
        if isinstance(one, dict) and isinstance(two, dict):
            yield from _class_changes(name, one, two)
        elif isinstance(one, dict) or isinstance(two, dict):
            yield Change(TOPIC, name, one, two, f"context {name} is priced in the {_which(two)} only")
        else:
            yield from walk(TOPIC, one, two, name)


def _class_changes(name: str, before: dict[str, Any], after: dict[str, Any]) -> Iterator[Change]:
    for kind in sorted(before.keys() | after.keys()):
        one, two = before.get(kind), after.get(kind)
        if _is_price(one) and _is_price(two):
            if one != two:
                yield _moved(f"{name}.{kind}", f"context {name} {kind}", one, two)
        elif isinstance(one, dict) and isinstance(two, dict):
            yield from _largest(name, kind, one, two)
        elif one != two:
            yield Change(
                TOPIC, f"{name}.{kind}", one, two, f"context {name} {kind} is priced in the {_which(two)} only"
            )


def _largest(name: str, kind: str, before: dict[str, Any], after: dict[str, Any]) -> Iterator[Change]:
    both = [rows for rows in before.keys() & after.keys() if _is_price(before[rows]) and _is_price(after[rows])]
    moved = [rows for rows in both if before[rows] != after[rows]]
    if moved:
        rows = max(sorted(moved), key=lambda key: abs(math.log(after[key] / before[key])))
        words = f"context {name} {kind} of {rows} row{'s' * (rows != '1')}"
        yield _moved(f"{name}.{kind}.{rows}", words, before[rows], after[rows])
    if before.keys() != after.keys():
        counts = f"{len(before)} row counts, then {len(after)}"
        yield Change(TOPIC, f"{name}.{kind}", sorted(before), sorted(after), f"context {name} {kind}: {counts}")


def _moved(field: str, what: str, before: float, after: float) -> Change:
    ratio = after / before
    times = f"{ratio:.2f}x" if 0.1 <= ratio < 100 else f"{ratio:.2g}x"
    return Change(TOPIC, field, before, after, f"{what}: {before:.4g} -> {after:.4g} ms, {times}")


def _is_price(value: object) -> TypeGuard[float]:
    return isinstance(value, int | float) and not isinstance(value, bool) and value > 0


def _which(second: Any) -> str:
    return "second" if second is not None else "first"
