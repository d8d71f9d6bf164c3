"""Forced rounds: as many tokens as they are told, the plain text, and a drafter that is asked and not heard."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from bench.gpu.context import Context, Opened
from bench.gpu.figures import forced
from bench.gpu.figures.forced import ACCEPTED, CYCLE, ROWS, schedule
from bench.gpu.passes import Passes
from bench.gpu.shapes import HYBRID27B
from tandem.keys import Kind
from tandem.tree import DraftTree
from tests.fake_drafting import Drafting
from tests.fake_recurrent import RecurrentExecutor
from tests.fakes import ScriptedExecutor, geometry

SIZES = geometry(context_length=256, max_rows=64, max_lanes=1)


@pytest.fixture(autouse=True)
def _short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forced, "CONTEXT", 10)
    monkeypatch.setattr(forced, "CYCLES", 1)


def context_of(executor: ScriptedExecutor, monkeypatch: pytest.MonkeyPatch) -> Context:
    context = Context({HYBRID27B.name: Path("b")}, repeats=2)
    bundle = SimpleNamespace(geometry=executor.geometry, prices={})
    opened = Opened(HYBRID27B, bundle, executor, Passes(executor))
    monkeypatch.setattr(context, "open", lambda name: opened)
    return context


def test_the_schedule_is_told_once_and_for_all() -> None:
    assert sum(ACCEPTED) / len(ACCEPTED) == pytest.approx(3.6)
    assert CYCLE / len(ACCEPTED) == pytest.approx(4.6)
    guesses = schedule()
    assert guesses == schedule()
    assert sorted(guess.right for guess in guesses) == list(ACCEPTED)
    assert {guess.right + guess.wrong + guess.branches for guess in guesses} == {ROWS - 1}
    assert all(guess.wrong for guess in guesses), "nothing behind what is told is right by chance"
    assert all(guess.branches for guess in guesses)


def test_only_what_is_told_is_verified() -> None:
    told, other = (DraftTree.chain(3, [4, 5], [0.9, 0.8], source) for source in ("scripted", "mtp"))
    router = forced.Scripted()
    assert router.choose([[other, told]], [10], 32, [0]) == [told]
    (root,) = router.choose([[other]], [10], 32, [0])
    assert root.num_drafted == 0


def test_rounds_commit_what_they_are_told_and_the_plain_text(monkeypatch: pytest.MonkeyPatch) -> None:
    executor = RecurrentExecutor(capacities=SIZES)
    figure = forced.forced(context_of(executor, monkeypatch))
    assert figure.identical
    by_name = {line.name: line for line in figure.lines}
    assert by_name["forced: a round"].note == "4.60 tokens"
    ratio, efficiency = by_name["forced: over plain"], by_name["forced: efficiency"]
    assert ratio.goal is not None and efficiency.goal is not None
    assert ratio.spread.median / efficiency.spread.median == pytest.approx(4.6)
    assert by_name["forced: a round"].spread.median == pytest.approx(
        by_name["a plain step"].spread.median / efficiency.spread.median, rel=0.5
    )
    verifies = [rows for kind, rows in executor.passes if kind is Kind.VERIFY_TREE]
    assert len(verifies) >= 3 * (len(ACCEPTED) - 3) and verifies.count(ROWS) >= 3 * (len(ACCEPTED) - 4)
    assert figure.absent == ["what a draft costs: the bundle has no drafter"]


def test_a_drafter_of_the_bundle_is_paid_and_its_guesses_are_left(monkeypatch: pytest.MonkeyPatch) -> None:
    executor = Drafting(capacities=SIZES, accuracy=1.0)
    asked: list[Kind] = []
    draft = executor.draft
    monkeypatch.setattr(executor, "draft", lambda kind, rows: asked.append(kind) or draft(kind, rows))
    figure = forced.forced(context_of(executor, monkeypatch))
    by_name = {line.name: line for line in figure.lines}
    way = "forced, a drafting layer asked"
    assert figure.identical and not figure.absent and executor.astray == 0
    assert by_name[f"{way}: a round"].note == by_name["forced: a round"].note == "4.60 tokens"
    assert f"{way}: its drafts, a round" in by_name
    assert asked.count(Kind.DRAFT) >= 3 * (len(ACCEPTED) - 3)
    assert by_name["forced: over plain"].goal is None and by_name[f"{way}: over plain"].goal is not None


def test_a_drafter_that_gave_up_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    executor = Drafting(capacities=SIZES, accuracy=1.0)

    def gone(kind: Kind, rows: object) -> None:
        raise RuntimeError("the device is gone")

    monkeypatch.setattr(executor, "draft", gone)
    figure = forced.forced(context_of(executor, monkeypatch))
    assert figure.identical
    assert figure.absent == ["what drafts cost in 3 of 3 answers: the drafter was given up there"]
