"""Rounds in every order are proved where a state is kept, and a state that one of them leaves wrong is seen."""

from __future__ import annotations

import itertools

import pytest

from tandem.keys import Kind
from tandem.runtime.checks.lab import Lab
from tandem.runtime.checks.orders import every_order
from tandem.runtime.checks.proof import Proof, Report
from tandem.runtime.checks.proof_entries import prove
from tandem.runtime.checks.proof_rounds import RoundsProof
from tandem.runtime.checks.watch import Watch
from tandem.runtime.executor.base import Executor
from tests.fake_recurrent import RecurrentExecutor
from tests.fakes import ScriptedExecutor, geometry
from tests.runtime.checks.faults import Faulty

ROOMY = geometry(context_length=200)


@pytest.mark.parametrize("count", range(1, 8))
def test_every_order_is_met_once(count: int) -> None:
    found = every_order(range(count))
    assert len(found) == count * count
    assert set(zip(found, [*found[1:], found[0]], strict=True)) == set(itertools.product(range(count), repeat=2))


def rounds_of(executor: Executor, num_lanes: int = 4) -> Report:
    report = Report()
    RoundsProof(Lab(executor, num_lanes), report).run()
    return report


def test_rounds_of_a_sound_executor_are_proved() -> None:
    watch = Watch(RecurrentExecutor(capacities=ROOMY))
    report = rounds_of(watch)
    assert report.differing == 0 and report.cases > 400
    assert {Kind.EXTEND, Kind.VERIFY_CHAIN, Kind.VERIFY_TREE} == {kind for kind, _ in watch.passes}
    assert {rows for kind, rows in watch.passes if kind is Kind.VERIFY_TREE} >= {6, 24}


def test_a_short_context_plays_what_it_holds() -> None:
    report = rounds_of(RecurrentExecutor(capacities=geometry(context_length=40)))
    assert report.differing == 0 and 0 < report.cases < 200


@pytest.mark.parametrize("fault", ["commit", "path"])
def test_what_a_round_leaves_wrong_is_named(fault: str) -> None:
    report = rounds_of(Faulty(RecurrentExecutor(capacities=ROOMY), fault))
    assert report.differing and report.first[0].startswith("rounds in every order, lane 0 of 1")


def test_the_whole_proof_holds_a_state_and_sees_one_that_is_lost() -> None:
    assert prove(Lab(RecurrentExecutor(capacities=ROOMY), 4)).differing == 0
    report = Proof(Lab(Faulty(RecurrentExecutor(capacities=ROOMY), "commit"), 4)).run()
    assert report.differing and "state" in report.first[0]


def test_a_model_without_a_state_has_no_such_rounds() -> None:
    heard: list[str] = []
    prove(Lab(ScriptedExecutor(capacities=ROOMY), 2), heard.append)
    assert heard and not any("every order" in step for step in heard)
