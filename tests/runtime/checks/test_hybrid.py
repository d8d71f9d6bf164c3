"""A hybrid's bundle, from the command that compiles it to the text that it answers: every check holds it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from tandem.artifacts.cli import cli as bundle_cli
from tandem.artifacts.reader import open_bundle
from tandem.command import run_command
from tandem.prices import PriceModel
from tandem.runtime.checks.cli import cli
from tandem.runtime.checks.proof import CHUNKS, TEXT
from tandem.runtime.drafters.lookup import lookup_drafters
from tandem.runtime.engine import Engine
from tandem.runtime.loading import LoadOptions, examine, load, open_executor
from tandem.runtime.request import Request
from tests.compile.models import oracle
from tests.fake_routers import EvenRouter
from tests.fakes import Recorder

NUM_IDS = 12


@pytest.fixture(scope="module")
def hybrid(tiny_bundle: Callable[..., Path]) -> Path:
    return tiny_bundle("qwen3_5", "fp32")


def proof_cases(lanes: int) -> int:
    """The fewest comparisons of a proof with rounds: of each lane's pass a row's logits, then the state it leaves.

    A text in chunks, of each the last 32 rows; chains of 1 to 32 rows and trees of 2 to 32; joint passes of two lanes
    and of all, a chain, a tree and a row each; rounds of six kinds, each behind each other one, of a lane and of four.
    """
    chunks = sum(1 + sum(min(32, size, TEXT - at) for at in range(0, TEXT, size)) for size in CHUNKS)
    chains = sum(rows + 1 for rows in range(1, 33))
    trees = sum(rows + 1 for rows in (2, 4, 7, 10, 12, 15, 18, 21, 23, 26, 29, 32))
    joint = sum(n * (2 * (32 // n + 1) + 1 + 1) for n in (2, lanes))
    rounds = (1 + 4) * (6 * 6 + 1) * (1 + 1)
    return chunks + chains + trees + joint + rounds


def test_its_proof_has_rounds_in_every_order(hybrid: Path) -> None:
    bundle = open_bundle(hybrid)
    assert bundle.manifest.family == "qwen3_5" and bundle.manifest.format == 4
    assert (
        bundle.manifest.proof.cases >= proof_cases(bundle.geometry.max_lanes) and bundle.manifest.proof.differing == 0
    )
    assert set(bundle.json("oracle.json")) == {"full", "load"}


def test_speculative_text_is_plain_text(hybrid: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert (
        run_command(cli, "tandem-check", ["spec", str(hybrid), "--quick", "--tokens", "8", "--threads", "1", "--json"])
        == 0
    )
    facts = json.loads(capsys.readouterr().out)
    assert facts["held"] and facts["lanes"] == [1, 2, 3, 4]
    assert facts["proof"]["cases"] >= proof_cases(4)
    assert all(row["differing_ids"] == row["differing_bits"] == 0 for row in facts["rows"])
    assert {row["drafter"] for row in facts["rows"]} > {"mixed", "wrong", "right", "none"}


def test_it_computes_what_it_was_sealed_with(hybrid: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(cli, "tandem-check", ["identity", str(hybrid), str(hybrid), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["scenario"] == "full"


def test_its_self_check_holds_at_load(hybrid: Path) -> None:
    bundle = open_bundle(hybrid)
    executor = open_executor(bundle, threads=1, num_pages=6, num_slots=2)
    assert examine(bundle, executor)[0]
    executor.close()


def test_its_greedy_text_is_that_of_transformers(hybrid: Path) -> None:
    """With drafts, for two requests at once, and through what serves them."""
    model = oracle.transformers_model(hybrid.parent / "checkpoint", torch.float32)
    prompts = [tuple(range(40, 60)), tuple(range(7, 12)) * 5]
    wanted = []
    for prompt in prompts:
        ids = list(prompt)
        for _ in range(NUM_IDS):
            ids.append(int(oracle.logits(model, ids)[-1].argmax()))
        wanted.append(ids[len(prompt) :])
    engine = Engine(
        open_executor(open_bundle(hybrid), threads=1, num_pages=20),
        drafters=lookup_drafters(),
        prices=PriceModel(),
        router=EvenRouter(),
    )
    sinks = [Recorder() for _ in prompts]
    for prompt, sink in zip(prompts, sinks, strict=True):
        engine.submit(Request(prompt, NUM_IDS), sink)
    while engine.step():
        pass
    assert [sink.ids for sink in sinks] == wanted
    engine.close()
    service = load(hybrid, LoadOptions(threads=1, max_num_seqs=1))
    served = Recorder()
    service.worker.submit(Request(prompts[0], NUM_IDS), served)
    service.worker.drain()
    service.worker.stop()
    assert served.ids == wanted[0]


def test_onnx_is_refused_by_name(hybrid: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["export-onnx", str(hybrid), "-o", str(tmp_path / "model.onnx")]
    assert run_command(bundle_cli, "tandem-bundle", command) == 2
    assert "qwen3_5 has recurrent layers, which are not exported as ONNX" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())
