"""A chain as an executor makes it by itself, made pass by pass: what its guesses must be."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from tandem.keys import Kind
from tandem.runtime.executor.base import DraftOutcome, DraftRows


def by_host(draft: Callable[[Kind, DraftRows], DraftOutcome], rows: DraftRows) -> DraftOutcome:
    """The outcome of `rows`, which ask for a chain, by one call of `draft` for each depth."""
    ends = list(rows.output_row)
    lane, tap = ([values[row] for row in ends] for values in (rows.lane, rows.tap_out))
    assert min(tap) >= 0, "every output leaves what its chain goes on from"
    made = [draft(Kind.DRAFT, replace(rows, chain=1))]
    for depth in range(1, rows.chain):
        place = [rows.position[row] + depth for row in ends]
        after, token = [position + 1 for position in place], made[-1].token[:, 0].tolist()
        line = DraftRows(token, place, lane, place, after, tap, rows.block_table, range(len(ends)), tap)
        made.append(draft(Kind.DRAFT, line))
    return replace(made[0], ms=sum(outcome.ms for outcome in made), behind=made[1:])
