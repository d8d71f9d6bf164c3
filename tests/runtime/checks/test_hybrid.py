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
from tandem.runtime.drafters.lookup import lookup_drafters
from tandem.runtime.engine import Engine
from tandem.runtime.loading import LoadOptions, examine, load, open_executor
from tandem.runtime.request import Request
from tests.compile.models import oracle
from tests.fakes import EvenRouter, Recorder

NUM_IDS = 12


@pytest.fixture(scope="module")
def hybrid(tiny_bundle: Callable[..., Path]) -> Path:
    return tiny_bundle("qwen3_5", "fp32")


def test_its_proof_has_rounds_in_every_order(hybrid: Path) -> None:
    bundle = open_bundle(hybrid)
    assert bundle.manifest.family == "qwen3_5" and bundle.manifest.format == 4
    assert bundle.manifest.proof.cases > 2500 and bundle.manifest.proof.differing == 0
    assert set(bundle.json("oracle.json")) == {"full", "load"}


def test_speculative_text_is_plain_text(hybrid: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert (
        run_command(cli, "tandem-check", ["spec", str(hybrid), "--quick", "--tokens", "8", "--threads", "1", "--json"])
        == 0
    )
    facts = json.loads(capsys.readouterr().out)
    assert facts["held"] and facts["lanes"] == [1, 2, 3, 4] and facts["proof"]["cases"] > 2500
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
