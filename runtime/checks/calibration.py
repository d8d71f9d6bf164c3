"""Prices at load, where the bundle's own come from another machine: one row and the widest bucket, measured.

Knows nothing of what made the prices stale.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from typing import Any

from tandem.keys import MAX_TREE_ROWS, Kind
from tandem.prices import PriceModel
from tandem.runtime.checks.pricing import pass_ms
from tandem.runtime.executor.base import Executor

REPEATS = 3
PASSES = (Kind.EXTEND, Kind.VERIFY_CHAIN, Kind.VERIFY_TREE)


def calibrated(executor: Executor, prices: Mapping[str, Any]) -> dict[str, Any]:
    """`prices` scaled to what passes cost here, in the same shape; a table of two counts if it holds no class.

    Between one row and the widest bucket the ratio is interpolated, so prices keep the staircase they had.
    """
    g = executor.geometry
    widest = min(MAX_TREE_ROWS, g.max_rows, g.max_outputs)
    classes = [key for key in prices if key.isdigit()]
    held = min(g.context_length, executor.num_pages * g.page_tokens) - widest
    context = max(0, min(int(min(classes, key=int, default="0")) * 3 // 4, held))  # where `pricing` measured
    one, wide = (_measure(executor, *ends, context) for ends in ((Kind.EXTEND, 1), (Kind.VERIFY_CHAIN, widest)))
    if not classes:
        flat = {kind.value: {"1": one, str(widest): max(one, wide)} for kind in PASSES}
        return {str(g.context_length): flat, "measured": "at load"}
    table = PriceModel(prices)
    first, last = one / table.ms(context, Kind.EXTEND, 1), wide / table.ms(context, Kind.VERIFY_CHAIN, widest)

    def scaled(entry: Any) -> Any:
        if not isinstance(entry, Mapping):
            return entry * first
        found, stair = dict[str, float](), (0.0, 0.0)
        for rows, ms in sorted(entry.items(), key=lambda point: -int(point[0])):
            share = min(1.0, (int(rows) - 1) / max(1, widest - 1))
            # Counts that cost the same are one program: they go by the widest of them.
            stair = stair if ms == stair[0] else (ms, first + (last - first) * share)
            found[rows] = ms * stair[1]
        return dict(reversed(found.items()))

    table_here = {key: {name: scaled(entry) for name, entry in prices[key].items()} for key in classes}
    step = {"step_ms": prices["step_ms"] * last} if "step_ms" in prices else {}
    return table_here | step | {"measured": "calibrated at load"}


def _measure(executor: Executor, kind: Kind, rows: int, context: int) -> float:
    return statistics.median([pass_ms(executor, kind, rows, context) for _ in range(1 + REPEATS)][1:])
