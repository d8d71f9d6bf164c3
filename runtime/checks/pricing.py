"""Measures what passes cost: least milliseconds of several per context class, kind and row count.

Whatever else runs only adds to a time, and a table that is too dear is never put right, as nobody drafts at its prices.
Times do not depend on what the cache holds, so no text is prefilled for it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from tandem.keys import Kind, context_classes
from tandem.runtime.executor.base import Executor, Moves, Rows

VERIFY_ROWS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32)
COMMIT_ROWS = (1, 16)
MOST_REPEATS, LEAST_REPEATS = 5, 2
ENOUGH_MS = 60.0
"""Time in one kind of pass after which it is not repeated: noise that shows in 10 ms is little beside 60."""


def row_counts(kind: Kind, executor: Executor) -> tuple[int, ...]:
    """Row counts that are priced; those between are interpolated."""
    g = executor.geometry
    if kind is Kind.EXTEND:
        return tuple(sorted({1, 2, min(4, g.max_rows), min(32, g.max_rows), g.max_rows}))
    return COMMIT_ROWS if kind is Kind.COMMIT else tuple(r for r in VERIFY_ROWS if r <= g.max_outputs)


def measure(executor: Executor, advance: Callable[[str], None] = lambda name: None) -> dict[str, Any]:
    """The price table, in the bundle's shape. Contexts are three quarters of their class long.

    Classes that the executor's pages do not hold are left out: the next lower one stands for them.
    """
    g, table = executor.geometry, dict[str, Any]()
    for kind in Kind:
        for rows in row_counts(kind, executor):
            pass_ms(executor, kind, rows, 0)  # warm-up
    held = executor.num_pages * g.page_tokens
    for bound in context_classes(g.context_length):
        context = max(0, min(bound * 3 // 4, g.context_length - g.max_rows))
        if table and context + g.max_rows > held:
            break
        table[str(bound)] = _class(executor, context, advance)
    last = table[list(table)[-1]][Kind.VERIFY_CHAIN.value]
    (r0, ms0), (r1, ms1) = list(last.items())[-2:]
    table["step_ms"] = round(max(0.0, (ms1 - ms0) / (int(r1) - int(r0))), 4)
    return table


def _class(executor: Executor, context: int, advance: Callable[[str], None]) -> dict[str, Any]:
    """One class's curves. Passes take turns, so that a slow moment falls on all of them alike."""
    times: dict[tuple[Kind, int], list[float]] = {
        (kind, rows): [] for kind in Kind for rows in row_counts(kind, executor)
    }
    for turn in range(MOST_REPEATS):
        advance(f"prices at {context} tokens, {turn + 1} of {MOST_REPEATS}")
        for key, taken in times.items():
            if turn < LEAST_REPEATS or sum(taken) < ENOUGH_MS:
                taken.append(pass_ms(executor, *key, context))
    curves: dict[str, Any] = {}
    for kind in Kind:
        floor = 0.0
        for rows in row_counts(kind, executor):
            floor = max(floor, min(times[kind, rows]))  # never falls with more rows
            curves.setdefault(kind.value, {})[str(rows)] = round(floor, 4)
    curves["plain"] = curves[Kind.EXTEND.value]["1"]
    return curves


def pass_ms(executor: Executor, kind: Kind, num_rows: int, context: int) -> float:
    """Milliseconds of one pass over a lane of `context` tokens, in whatever pages there are."""
    g = executor.geometry
    table = np.arange(g.blocks_per_lane, dtype=np.int32)[None, :] % executor.num_pages
    zeros, place = [0] * num_rows, range(context, context + num_rows)
    after = range(context + 1, context + num_rows + 1)
    if kind is Kind.COMMIT:
        return executor.commit(Moves(zeros, after, place, table))
    outputs = [num_rows - 1] if kind is Kind.EXTEND else range(num_rows)
    rows = Rows(zeros, place, zeros, place, after, outputs, table)
    if kind is Kind.VERIFY_TREE:
        rows.prefix = [context] * num_rows
        rows.ancestor = [range(context, context + row + 1) for row in range(num_rows)]
    return executor.run(kind, rows).ms
