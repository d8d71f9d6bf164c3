"""The proof of draws passes a device that draws as the host does, and names the row of one that does not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tandem.keys import Kind
from tandem.runtime.checks.lab import Lab
from tandem.runtime.checks.proof import Report
from tandem.runtime.checks.proof_draws import PENALTIES, TEMPERATURES, TURNS, DrawsProof
from tandem.runtime.checks.proof_entries import prove
from tandem.runtime.checks.watch import HostDraws
from tandem.runtime.executor.base import Outcome, Rows, Wishes
from tandem.wish import Wish
from tests.fakes import ScriptedExecutor, geometry

BUCKETS = (1, 4, 32)
ENTRIES = [(kind, 0, rows) for rows in BUCKETS for kind in (Kind.SAMPLE, Kind.EXTEND)]


def test_every_bucket_is_drawn_in_many_manners() -> None:
    executor = ScriptedExecutor(capacities=geometry(draws=True), entries=ENTRIES)
    seen: list[Wishes] = []
    run = executor.run

    def watched(kind: Kind, rows: Rows) -> Outcome:
        wishes = rows.wishes() if rows.wishes else None
        assert wishes is not None
        seen.append(wishes)
        return run(kind, rows)

    executor.run = watched  # type: ignore[method-assign]
    report = DrawsProof(executor, Report()).run()
    assert (report.cases, report.differing) == (TURNS * sum(BUCKETS), 0)
    rows = np.concatenate([wishes.row for wishes in seen])
    assert set(rows[:, Wish.LANE]) == {-1, *range(geometry().max_lanes)}
    assert len(set(rows[:, Wish.SCALE])) == len(TEMPERATURES)
    assert len({tuple(row[Wish.COUNTED :]) for row in rows}) == len(PENALTIES)
    assert any(wishes.fresh for wishes in seen) and any(any(wishes.said) for wishes in seen)


FAULTS: dict[str, Callable[[Wishes], Any]] = {
    "seeds": lambda wishes: wishes.row.__setitem__((-1, Wish.SEED), wishes.row[-1, Wish.SEED] ^ (1 << 62)),
    "paths": lambda wishes: setattr(wishes, "said", [[]] * len(wishes.said)),
    "fresh ids": lambda wishes: setattr(wishes, "fresh", []),
    "texts": lambda wishes: setattr(wishes, "seen", []),
    "top_p": lambda wishes: wishes.row.__setitem__((slice(None), Wish.TOP_P), 0),
    "top_k": lambda wishes: wishes.row.__setitem__((slice(None), Wish.TOP_K), 0),
    "positions": lambda wishes: wishes.row.__setitem__((slice(None), Wish.POSITION), 0),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_device_that_draws_otherwise_is_seen(fault: str) -> None:
    executor = ScriptedExecutor(capacities=geometry(draws=True), entries=ENTRIES)
    draws = executor.draws.draw

    def wrong(wishes: Wishes, logits: list[np.ndarray]) -> list[int]:
        FAULTS[fault](wishes)
        return draws(wishes, logits)

    executor.draws.draw = wrong  # type: ignore[method-assign]
    report = DrawsProof(executor, Report()).run()
    assert 0 < report.differing < report.cases
    assert report.first[0].startswith("draw, row ")


def test_bundles_are_proved_to_draw_where_they_do() -> None:
    cases = [prove(Lab(ScriptedExecutor(capacities=geometry(draws=draws)), 2)).cases for draws in (False, True)]
    assert cases[1] == cases[0] + 32 * TURNS


def test_a_host_may_draw_in_the_place_of_a_device() -> None:
    executor = ScriptedExecutor(capacities=geometry(draws=True))
    assert not HostDraws(executor).geometry.draws and executor.geometry.draws
