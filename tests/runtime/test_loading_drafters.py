"""What drafts in a service: lookup, the bundle's own model or both, as asked for and as far as it guesses as sealed."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import pytest

from tandem.artifacts import reader
from tandem.artifacts.io import Geometry
from tandem.errors import UsageError
from tandem.runtime import loading
from tandem.runtime.checks import draft_scenario
from tandem.runtime.checks.oracle import Digests
from tandem.runtime.loading import LoadOptions, load
from tandem.runtime.worker import Worker
from tests.fake_blocks import BlockExecutor
from tests.fake_drafting import DraftingExecutor
from tests.fake_taps import Tapped
from tests.loaded import CAPACITIES, stand_in


@pytest.fixture
def bundle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    return stand_in(tmp_path, monkeypatch)


def served_by(
    monkeypatch: pytest.MonkeyPatch, oracle: Digests | None, executor: Tapped | None = None, **options: Any
) -> tuple[bool, bool]:
    """Whether the lookup drafts, and whether the model does, over a bundle with a drafting layer or this executor."""
    executor = executor or DraftingExecutor(capacities=CAPACITIES)
    monkeypatch.setattr(loading, "open_executor", lambda bundle, **options: executor)
    opened = reader.open_bundle(Path("x"))
    monkeypatch.setattr(opened, "geometry", executor.geometry)
    monkeypatch.setattr(opened, "json", lambda name: {} if oracle is None else {draft_scenario.NAME: oracle})
    service = load(Path("x"), LoadOptions(**options))
    service.worker.stop()
    made = cast(Worker, service.worker)._engine
    return made._drafters is not None, made._models is not None


@pytest.fixture
def guesses() -> Digests:
    return draft_scenario.run(DraftingExecutor(capacities=CAPACITIES))


@pytest.mark.parametrize(
    ("drafter", "lookup", "models"),
    [("auto", True, True), ("mtp", False, True), ("lookup", True, False), ("none", False, False)],
)
def test_what_drafts_is_what_was_asked_for(
    bundle: list[dict[str, Any]],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    guesses: Digests,
    drafter: Any,
    lookup: bool,
    models: bool,
) -> None:
    assert served_by(monkeypatch, guesses, drafter=drafter) == (lookup, models)
    assert caplog.records == []


def test_where_a_bit_differs_nothing_drafts(
    bundle: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch, guesses: Digests
) -> None:
    monkeypatch.setattr(loading, "examine", lambda bundle, executor: (False, {}))
    assert served_by(monkeypatch, guesses) == (False, False)


@pytest.mark.parametrize("sealed", [True, False])
def test_a_drafter_that_guesses_otherwise_than_sealed_is_off(
    bundle: list[dict[str, Any]],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    guesses: Digests,
    sealed: bool,
) -> None:
    oracle = [*guesses[:-1], (guesses[-1][0], "f" * 64)] if sealed else None
    assert served_by(monkeypatch, oracle) == (True, False)
    (record,) = caplog.records
    assert "it is off, answers are the same without: compile the bundle again" in record.getMessage()


NONE, LAYER, BLOCKS = CAPACITIES, DraftingExecutor().geometry, BlockExecutor().geometry


@pytest.mark.parametrize(
    ("drafter", "capacities", "told"),
    [
        ("mtp", NONE, "bundles with a drafting layer and this one has none of its own; leave it out"),
        ("block", NONE, "bundles with a block drafter and this one has none of its own; leave it out"),
        ("mtp", BLOCKS, "a drafting layer and this one has a block drafter: give --drafter block, or leave it out"),
        ("block", LAYER, "a block drafter and this one has a drafting layer: give --drafter mtp, or leave it out"),
    ],
)
def test_a_model_that_is_not_there_cannot_draft(
    bundle: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch, drafter: Any, capacities: Geometry, told: str
) -> None:
    monkeypatch.setattr(reader.open_bundle(Path("x")), "geometry", capacities)
    with pytest.raises(UsageError, match=f"--drafter {drafter} is for .*{told}"):
        load(Path("x"), LoadOptions(drafter=drafter))
    assert bundle == [], "nothing was opened"


@pytest.mark.parametrize(
    ("drafter", "lookup", "models"),
    [("auto", True, True), ("block", False, True), ("lookup", True, False), ("none", False, False)],
)
def test_a_block_drafter_drafts_where_it_is_asked_for(
    bundle: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch, drafter: Any, lookup: bool, models: bool
) -> None:
    sealed = draft_scenario.run(BlockExecutor(capacities=CAPACITIES))
    assert served_by(monkeypatch, sealed, BlockExecutor(capacities=CAPACITIES), drafter=drafter) == (lookup, models)


def test_a_block_drafter_that_guesses_otherwise_than_sealed_is_off(
    bundle: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    sealed = draft_scenario.run(BlockExecutor(capacities=CAPACITIES))
    assert served_by(monkeypatch, sealed, BlockExecutor(capacities=CAPACITIES, manner="random")) == (True, False)
    assert "it is off, answers are the same without" in caplog.text
