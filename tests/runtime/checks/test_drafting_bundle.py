"""A bundle with a drafter from the command that compiles it: proved, priced, sealed, probed; its texts are as ever."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tandem.artifacts.cli import cli as bundle_cli
from tandem.artifacts.reader import open_bundle
from tandem.command import run_command
from tandem.prices import PriceModel
from tandem.runtime.checks.cli import cli
from tandem.runtime.checks.draft_scenario import CHAIN, NAME
from tandem.runtime.checks.oracle import sealed
from tandem.runtime.checks.probe import probe
from tandem.runtime.engine import Engine
from tandem.runtime.loading import open_executor
from tandem.runtime.request import Request
from tests.fakes import Recorder

PROMPT = [(11 * i * i + 5) % 300 for i in range(40)]


@pytest.fixture(scope="module")
def drafting(tiny_bundle: Callable[..., Path]) -> Path:
    return tiny_bundle("qwen3_5", "fp32", drafter="mtp")


@pytest.fixture(scope="module")
def plain(tiny_bundle: Callable[..., Path]) -> Path:
    return tiny_bundle("qwen3_5", "fp32")


def test_it_is_proved_priced_and_sealed(drafting: Path, plain: Path) -> None:
    bundle, without = open_bundle(drafting, verify="digests"), open_bundle(plain)
    assert bundle.manifest.proof.differing == 0
    assert bundle.manifest.proof.cases > without.manifest.proof.cases + 900
    oracle, other = sealed(bundle), sealed(without)
    assert len(oracle.pop(NAME)) == 1 + CHAIN and oracle == other
    prices = PriceModel(bundle.prices)
    for kind in bundle.kinds[-2:]:
        assert 0 < prices.ms(200, kind, 1) <= prices.ms(200, kind, 32)
    assert "| draft |" in (drafting / "report" / "report.md").read_text()
    assert "draft" not in (plain / "report" / "report.md").read_text().replace("drafter", "")


def test_its_guesses_here_are_those_sealed(drafting: Path) -> None:
    bundle = open_bundle(drafting)
    executor = open_executor(bundle, threads=1, num_pages=5)
    try:
        found = probe(executor, sealed(bundle)[NAME])
    finally:
        executor.close()
    assert found.held and str(found) == "drafter: 5 comparisons, no bit differs"


def answer(path: Path) -> list[int]:
    executor = open_executor(open_bundle(path), threads=1, num_pages=5)
    engine, sink = Engine(executor, drafters=None, prices=PriceModel(), max_lanes=1), Recorder()
    try:
        engine.submit(Request(PROMPT, max_tokens=60), sink)
        while engine.step():
            pass
    finally:
        engine.close()
    return sink.ids


def test_texts_are_those_of_the_bundle_without_it(drafting: Path, plain: Path) -> None:
    found = answer(drafting)
    assert len(found) == 60 and found == answer(plain)


def test_commands_know_it(drafting: Path, plain: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert run_command(bundle_cli, "tandem-bundle", ["inspect", str(drafting)]) == 0
    assert "drafter     mtp: chains of 4" in capfd.readouterr().out
    assert run_command(bundle_cli, "tandem-bundle", ["verify", str(drafting)]) == 0
    run_command(bundle_cli, "tandem-bundle", ["diff", str(plain), str(drafting)])
    out = capfd.readouterr().out
    assert "oracle            draft: in the second only" in out and "sync: in the second only" in out
    # The scenario of texts says the same of both: taps move no bit.
    assert run_command(cli, "tandem-check", ["identity", str(plain), str(drafting)]) == 0
