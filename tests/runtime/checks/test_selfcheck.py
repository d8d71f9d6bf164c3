"""What loading finds out about its machine: bits that moved turn speculation off, stale prices are measured again."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tandem.artifacts.fit import Fit, Grade, Reason
from tandem.artifacts.reader import Bundle
from tandem.keys import Kind
from tandem.prices import PriceModel
from tandem.runtime import engine, loading
from tandem.runtime.checks import oracle
from tandem.runtime.checks.calibration import calibrated
from tandem.runtime.checks.lab import Lab
from tandem.runtime.checks.scenario import SCENARIOS, run_scenario
from tandem.runtime.checks.selfcheck import self_check
from tandem.runtime.checks.watch import Watch
from tandem.runtime.executor.base import Executor, Rows
from tandem.runtime.loading import LoadOptions, examine, load, open_executor
from tests.fakes import ScriptedExecutor, geometry
from tests.runtime.checks.faults import Faulty

CAPACITIES = geometry()
Digests = list[tuple[str, str]]


def digests() -> Digests:
    return run_scenario(Lab(ScriptedExecutor(capacities=CAPACITIES), 4), SCENARIOS["load"])


def with_digest(what: str, pairs: Digests) -> Digests:
    """`pairs` with another digest of `what`."""
    assert what in dict(pairs)
    return [(name, "f" * 64 if name == what else bits) for name, bits in pairs]


@pytest.fixture
def drafting(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Whether each engine made from now on has drafters."""
    seen: list[bool] = []

    class Spy(engine.Engine):
        def __init__(self, executor: Executor, *, drafters: Any, models: bool, **options: Any) -> None:
            assert not models, "this bundle has no drafting layer"
            seen.append(drafters is not None)
            super().__init__(executor, drafters=drafters, models=models, **options)

    monkeypatch.setattr(engine, "Engine", Spy)
    return seen


def open_and_stop(path: Path) -> None:
    load(path, LoadOptions(max_num_seqs=1)).worker.stop()


def test_a_sound_executor_is_held_in_few_passes() -> None:
    watch = Watch(ScriptedExecutor(capacities=CAPACITIES))
    check = self_check(watch, digests())
    assert check.held and check.compared == len(digests())
    assert {kind for kind, _ in watch.passes} >= {Kind.EXTEND, Kind.VERIFY_CHAIN, Kind.VERIFY_TREE}
    assert watch.passes.total() <= 5
    assert sum(rows * count for (_, rows), count in watch.passes.items()) <= 13


@pytest.mark.parametrize("what", [name for name, _ in digests()])
def test_every_digest_of_the_oracle_counts(what: str) -> None:
    check = self_check(ScriptedExecutor(capacities=CAPACITIES), with_digest(what, digests()))
    assert check.from_oracle == (what,) and not check.from_steps
    assert f"differ from what was sealed, first: {what}" in str(check)


@pytest.mark.parametrize(
    ("fault", "kind", "first"),
    [
        ("logits", Kind.VERIFY_CHAIN, "chain of 3, row 2: logits"),
        ("logits", Kind.VERIFY_TREE, "tree of 4, row 3: logits"),
        ("argmax", Kind.VERIFY_TREE, "tree of 4, row 3: logits"),
        ("commit", Kind.COMMIT, "one-token step: state"),
    ],
)
def test_rows_are_held_against_steps_without_an_oracle(fault: str, kind: Kind, first: str) -> None:
    def when(now: Kind, rows: Rows) -> bool:
        return now is kind

    check = self_check(Faulty(ScriptedExecutor(capacities=CAPACITIES), fault, when), None)
    assert check.from_steps[0] == first and not check.from_oracle
    assert str(check).startswith("self-check: ")


def test_a_context_too_short_for_it_is_not_checked() -> None:
    assert self_check(ScriptedExecutor(capacities=geometry(context_length=12)), None).compared == 0


def test_a_sound_bundle_drafts_without_a_word(
    fp32: Path, drafting: list[bool], caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO):
        open_and_stop(fp32)
    assert drafting == [True]
    assert [r.levelno for r in caplog.records] == [logging.INFO]
    assert caplog.records[0].getMessage().endswith("no bit differs")


def test_a_bit_that_moved_turns_speculation_off_with_one_line(
    fp32: Path, drafting: list[bool], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    read = oracle.sealed
    monkeypatch.setattr(
        oracle, "sealed", lambda bundle: {"load": with_digest("chain of 3, row 1: logits", read(bundle)["load"])}
    )
    open_and_stop(fp32)
    assert drafting == [False]
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert "chain of 3, row 1: logits; speculation is off" in record.getMessage()


def test_an_executor_that_moves_a_bit_turns_speculation_off(
    fp32: Path, drafting: list[bool], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    sound = loading.open_executor
    monkeypatch.setattr(loading, "open_executor", lambda *a, **k: Faulty(sound(*a, **k), "logits"))
    open_and_stop(fp32)
    assert drafting == [False] and len(caplog.records) == 1
    assert "differ from one-token steps, first: chain of 3, row 2: logits" in caplog.text


@pytest.mark.parametrize(
    ("grade", "field", "measured"),
    [(Grade.STALE_PRICES, "host.price.cores", True), (Grade.REBUILD_ADVISED, "host.validity.isa_level", False)],
)
def test_a_host_that_is_not_the_best_gets_one_line(
    opened: Bundle,
    grade: Grade,
    field: str,
    measured: bool,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(Bundle, "fit", lambda self: Fit(grade, (Reason(grade, field, "64", "2"),)))
    executor = open_executor(opened, threads=1, num_pages=6)
    try:
        exact, prices = examine(opened, executor)
    finally:
        executor.close()
    assert exact and (prices.get("measured") == "calibrated at load") == measured
    assert [record.getMessage() for record in caplog.records] == [f"{grade}: {field}: 64 wanted, 2 found"]
    PriceModel(prices)  # of the right shape


def at(prices: dict[str, Any]) -> Callable[[Kind, int], float]:
    model = PriceModel(prices)
    return lambda kind, rows: model.ms(10, kind, rows)


def test_stale_prices_are_scaled_to_what_passes_cost() -> None:
    executor = ScriptedExecutor(capacities=CAPACITIES)  # a pass takes 1 + 0.1 a row: 1.1 and 4.2
    curve = {"1": 0.55, "16": 1.0, "32": 1.4}
    table = {"96": {"extend": curve, "verify-chain": curve, "plain": 0.55}, "step_ms": 0.02, "measured": "elsewhere"}
    ms = at(calibrated(executor, table))
    assert ms(Kind.EXTEND, 1) == pytest.approx(1.1) and ms(Kind.VERIFY_CHAIN, 32) == pytest.approx(4.2)
    assert ms(Kind.VERIFY_CHAIN, 16) == pytest.approx(1.0 * (2 + 15 / 31))
    found = calibrated(executor, table)
    assert found["96"]["plain"] == pytest.approx(1.1) and found["step_ms"] == pytest.approx(0.06)


def test_stale_stairs_stay_level() -> None:
    executor = ScriptedExecutor(capacities=CAPACITIES)
    curve = {"1": 0.55, "2": 1.0, "16": 1.0, "17": 1.4, "32": 1.4}
    ms = at(calibrated(executor, {"96": {"extend": curve, "verify-chain": curve, "plain": 0.55}}))
    assert ms(Kind.EXTEND, 1) == pytest.approx(1.1)
    for rows in (2, 9, 16):
        assert ms(Kind.VERIFY_CHAIN, rows) == pytest.approx(1.0 * (2 + 15 / 31))
    for rows in (17, 25, 32):
        assert ms(Kind.VERIFY_CHAIN, rows) == pytest.approx(4.2)


def test_no_prices_at_all_are_measured_at_two_counts() -> None:
    ms = at(calibrated(ScriptedExecutor(capacities=CAPACITIES), {}))
    for kind in (Kind.EXTEND, Kind.VERIFY_CHAIN, Kind.VERIFY_TREE):
        assert ms(kind, 1) == pytest.approx(1.1) and ms(kind, 32) == pytest.approx(4.2)
