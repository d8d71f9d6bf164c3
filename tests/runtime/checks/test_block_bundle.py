"""A bundle with a block drafter from the command that compiles it: proved, priced, sealed, probed; same texts."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tandem.artifacts.cli import cli as bundle_cli
from tandem.artifacts.reader import open_bundle
from tandem.command import run_command
from tandem.prices import PriceModel
from tandem.runtime.checks.cli import cli
from tandem.runtime.checks.draft_scenario import NAME
from tandem.runtime.checks.oracle import sealed
from tandem.runtime.checks.probe import probe
from tandem.runtime.loading import open_executor
from tests.tiny_drafter import BLOCK


@pytest.fixture(scope="module", params=["llama", "qwen3_5"])
def family(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def drafting(tiny_bundle: Callable[..., Path], family: str) -> Path:
    return tiny_bundle(family, "fp32", drafter="dflash2")


@pytest.fixture(scope="module")
def plain(tiny_bundle: Callable[..., Path], family: str) -> Path:
    return tiny_bundle(family, "fp32")


def test_it_is_proved_priced_and_sealed(drafting: Path, plain: Path) -> None:
    bundle, without = open_bundle(drafting, verify="digests"), open_bundle(plain)
    assert bundle.manifest.proof.differing == 0
    assert bundle.manifest.proof.cases > without.manifest.proof.cases + 400
    oracle, other = sealed(bundle), sealed(without)
    assert len(oracle.pop(NAME)) == 1 + BLOCK - 1 and oracle == other
    prices = PriceModel(bundle.prices)
    draft, sync = bundle.kinds[-2:]
    assert 0 < prices.ms(200, draft, BLOCK) <= prices.ms(200, draft, 6 * BLOCK)
    assert 0 < prices.ms(200, sync, 1) <= prices.ms(200, sync, 32)
    assert "| draft |" in (drafting / "report" / "report.md").read_text()


def test_its_guesses_here_are_those_sealed(drafting: Path) -> None:
    bundle = open_bundle(drafting)
    executor = open_executor(bundle, threads=1, num_pages=5)
    try:
        found = probe(executor, sealed(bundle)[NAME])
    finally:
        executor.close()
    assert found.held and str(found) == f"drafter: {BLOCK} comparisons, no bit differs"


def test_commands_know_it(drafting: Path, plain: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert run_command(bundle_cli, "tandem-bundle", ["inspect", str(drafting)]) == 0
    assert f"drafter     dflash2: blocks of {BLOCK}, 4 guesses a place" in capfd.readouterr().out
    assert run_command(bundle_cli, "tandem-bundle", ["verify", str(drafting)]) == 0
    run_command(bundle_cli, "tandem-bundle", ["diff", str(plain), str(drafting)])
    assert "oracle            draft: in the second only" in capfd.readouterr().out
    # The scenario of texts says the same of both: taps move no bit.
    assert run_command(cli, "tandem-check", ["identity", str(plain), str(drafting)]) == 0
