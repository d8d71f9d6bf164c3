"""Measures what passes cost: least milliseconds of several per context class, kind and row count.

Whatever else runs only adds to a time, and a table that is too dear is never put right, as nobody drafts at its prices.
A CPU's times do not depend on what the cache holds, so no text is prefilled for it; a GPU's do, as clocks follow the
power that bits take. Recurrent states are what passes make of them. Where each row count has a program of its own, a
step of the staircase has its price at both ends.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from tandem.artifacts.io import BlockGeometry
from tandem.keys import DRAFTER_KINDS, Kind, context_classes
from tandem.runtime.checks.lab import slots_for, token_ids
from tandem.runtime.executor.base import DraftRows, Executor, Moves, Rows
from tandem.runtime.rows import Span, block_rows, extend_rows

VERIFY_ROWS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32)
COMMIT_ROWS = (1, 16)
DRAFT_ROWS = (1, 2, 4, 8, 16, 32)
MOST_REPEATS, LEAST_REPEATS = 5, 2
ENOUGH_MS = 60.0
"""Time in one kind of pass after which it is not repeated: noise that shows in 10 ms is little beside 60."""
FILL = 32768
"""Tokens whose K and V a GPU is given before it is priced: more than its caches hold, seconds to prefill."""


def priced(executor: Executor) -> list[Kind]:
    """Kinds of the bundle that have prices. A draw has none: its time is part of that of the pass before it."""
    return [kind for kind in executor.geometry.kinds if kind is not Kind.SAMPLE]


def row_counts(kind: Kind, executor: Executor, bound: int = 0) -> tuple[int, ...]:
    """Row counts that are priced: those of the programs of context class `bound`, or, where one program serves any
    count, a choice between which prices are interpolated."""
    g = executor.geometry
    if executor.entries and kind is not Kind.COMMIT:
        return tuple(sorted({rows for k, b, rows in executor.entries if k is kind and b in (0, bound)}))
    if kind is Kind.EXTEND:
        return tuple(sorted({1, 2, min(4, g.max_rows), min(32, g.max_rows), g.max_rows}))
    if kind in DRAFTER_KINDS:
        if kind is Kind.DRAFT and (block := _block(executor)):
            return tuple(block.rows * lanes for lanes in range(1, g.draft_lanes + 1))
        counts = DRAFT_ROWS if kind is Kind.DRAFT else (*DRAFT_ROWS, g.max_rows)
        return tuple(sorted({min(rows, g.max_rows) for rows in counts}))
    return COMMIT_ROWS if kind is Kind.COMMIT else tuple(r for r in VERIFY_ROWS if r <= g.max_outputs)


def measure(executor: Executor, advance: Callable[[str], None] = lambda name: None) -> dict[str, Any]:
    """The price table, in the bundle's shape. Contexts are three quarters of their class long.

    Classes that the executor's pages do not hold are left out: the next lower one stands for them.
    """
    g, table = executor.geometry, dict[str, Any]()
    many = bool(executor.entries)
    if many:
        advance("a text for prices")
        _fill(executor)
    held = executor.num_pages * g.page_tokens
    for bound in context_classes(g.context_length):
        context = bound * 3 // 4
        if table and context + g.max_rows > held:
            break
        if many or not table:
            for kind, rows in _passes(executor, bound):
                pass_ms(executor, kind, rows, context if many else 0)  # warm-up
        table[str(bound)] = _class(executor, bound, context, advance)
    last = list(table)[-1]
    r0, r1 = (0, *row_counts(Kind.VERIFY_CHAIN, executor, int(last)))[-2:]
    chains = table[last][Kind.VERIFY_CHAIN.value]
    table["step_ms"] = round(max(0.0, (chains[str(r1)] - chains.get(str(r0), 0.0)) / (r1 - r0)), 4)
    return table


def _fill(executor: Executor) -> None:
    """Prefills lane 0 so far that no cache of the device holds it, in the pages that `pass_ms` goes round in."""
    g = executor.geometry
    blocks = _blocks_in_use(executor)
    table = np.arange(g.blocks_per_lane, dtype=np.int32)[None, :] % blocks
    ids = token_ids(min(blocks * g.page_tokens, g.context_length), g.vocab_size, seed=9)
    for begin in range(0, len(ids), g.max_rows):
        span = Span(0, begin, ids[begin : begin + g.max_rows], outputs=1)
        executor.run(Kind.EXTEND, extend_rows([span], table, slots_for(executor, 1)))


def _blocks_in_use(executor: Executor) -> int:
    """Pages that passes go round in: all of them, or no more than `_fill` fills."""
    most = max(1, FILL // executor.geometry.page_tokens) if executor.entries else executor.num_pages
    return min(executor.num_pages, most)


def _passes(executor: Executor, bound: int) -> list[tuple[Kind, int]]:
    """What is measured in a class. Where each count has a program, a step of several lanes is a chain's, not twice;
    unless it moves states on, which a chain does not."""
    shared = executor.entries and not executor.num_slots
    chains = row_counts(Kind.VERIFY_CHAIN, executor, bound) if shared else ()
    passes = [(kind, rows) for kind in priced(executor) for rows in row_counts(kind, executor, bound)]
    return [(kind, rows) for kind, rows in passes if kind is not Kind.EXTEND or rows not in chains]


def _class(executor: Executor, bound: int, context: int, advance: Callable[[str], None]) -> dict[str, Any]:
    """One class's curves. Passes take turns, so that a slow moment falls on all of them alike."""
    times: dict[tuple[Kind, int], list[float]] = {key: [] for key in _passes(executor, bound)}
    for turn in range(MOST_REPEATS):
        advance(f"prices at {context} tokens, {turn + 1} of {MOST_REPEATS}")
        for key, taken in times.items():
            if turn < LEAST_REPEATS or sum(taken) < ENOUGH_MS:
                taken.append(pass_ms(executor, *key, context))
    curves: dict[str, Any] = {}
    for kind in priced(executor):
        floor, below, curve = 0.0, 0, curves.setdefault(kind.value, {})
        for rows in row_counts(kind, executor, bound):
            taken = times.get((kind, rows)) or times[Kind.VERIFY_CHAIN, rows]
            floor = max(floor, min(taken))  # never falls with more rows
            if executor.entries and kind is not Kind.COMMIT:
                curve[str(below + 1)] = round(floor, 4)  # a program's fewest rows cost what its most do
            curve[str(rows)] = round(floor, 4)
            below = rows
    curves["plain"] = curves[Kind.EXTEND.value]["1"]
    return curves


def pass_ms(executor: Executor, kind: Kind, num_rows: int, context: int) -> float:
    """Milliseconds of one pass over a lane of `context` tokens, fewer where the rows need the room, in any pages."""
    g = executor.geometry
    context = max(0, min(context, g.context_length - num_rows))
    table = np.arange(g.blocks_per_lane, dtype=np.int32)[None, :] % _blocks_in_use(executor)
    tokens = token_ids(num_rows, g.vocab_size, seed=9) if executor.entries else [0] * num_rows
    zeros, place, slots = [0] * num_rows, range(context, context + num_rows), slots_for(executor, 1)
    after = range(context + 1, context + num_rows + 1)
    if kind is Kind.COMMIT:
        return executor.commit(Moves(zeros, after, place, table, range(num_rows), slots))
    if kind is Kind.DRAFT and (block := _block(executor)):  # each lane's over pages of its own
        lanes = range(num_rows // block.rows)
        pages = np.concatenate([(table + lane) % executor.num_pages for lane in lanes])
        return executor.draft(kind, block_rows(lanes, [context] * len(lanes), tokens[: len(lanes)], block, pages)).ms
    if kind in DRAFTER_KINDS:  # guesses of a row a lane, as all passes of a chain but the first are
        wanted = range(max(0, num_rows - g.max_lanes), num_rows if kind is Kind.DRAFT else 0)
        return executor.draft(kind, DraftRows(tokens, place, zeros, place, after, range(num_rows), table, wanted)).ms
    outputs = [num_rows - 1] if kind is Kind.EXTEND else range(num_rows)
    above = range(-1, num_rows - 1)
    rows = Rows(tokens, place, zeros, place, after, outputs, table, parent=above, state_slot=slots)
    if kind is Kind.VERIFY_TREE:
        rows.prefix = [context] * num_rows
        rows.ancestor = [range(context, context + row + 1) for row in range(num_rows)]
    return executor.run(kind, rows).ms


def _block(executor: Executor) -> BlockGeometry | None:
    """Of a drafter that guesses blocks."""
    drafter = executor.geometry.drafter
    return drafter.block if drafter else None
