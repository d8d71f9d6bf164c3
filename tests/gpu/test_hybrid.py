"""Tiny hybrids compiled for the GPU: proved, right to float64, text that no draft changes, states put back anywhere."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tandem.artifacts import layout
from tests.commands import Commands
from tests.tiny import make_checkpoint

CONTEXT_LENGTH = "1024"
IDS = [5, 17, 200, 31, 8, 8, 90, 301, 44, 12, 77]
WIDE: dict[str, Any] = {
    "num_attention_heads": 6, "head_dim": 256, "linear_key_head_dim": 128, "linear_value_head_dim": 128,
}  # fmt: skip
"""Heads as the 27B has them."""
MODELS = {
    "wide-bf16": ("qwen3_5", "bf16", WIDE),
    "odd-fp32": ("qwen3_5-odd", "fp32", dict[str, Any]()),
}
PASSES = """
import hashlib, json, sys
from pathlib import Path
from tandem.artifacts.reader import open_bundle
from tandem.keys import Kind
from tandem.runtime.loading import open_executor
from tandem.runtime.checks.lab import Lab
from tandem.runtime.rows import Span, extend_rows

def logits(ids, start=0):
    executor.run(Kind.EXTEND, extend_rows([Span(0, start, ids, outputs=1)], lab.table, [slot]))
    return executor.logits(0).copy()

executor = open_executor(open_bundle(Path(sys.argv[1])), num_pages=8)
lab, ids, slot = Lab(executor, 1), json.loads(sys.argv[2]), 3
whole = logits(ids)
again = {}
for cut in (1, 3, 7):
    slot = 3
    logits(ids[:cut])
    snapshot = executor.save(3, cut)
    logits([9, 9, 9], start=cut)  # what came behind it is undone
    slot = cut % 3
    executor.restore(slot, snapshot)
    again[cut] = hashlib.sha256(logits(ids[cut:], start=cut).tobytes()).hexdigest()
found = {"logits": whole.tolist(), "digest": hashlib.sha256(whole.tobytes()).hexdigest(), "again": again}
found["frameworks"] = sorted({"torch", "triton", "transformers"} & set(sys.modules))
executor.close()
print(json.dumps(found))
"""


@pytest.fixture(scope="module", params=list(MODELS))
def name(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(scope="module")
def checkpoint(name: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    family, _, overrides = MODELS[name]
    return make_checkpoint(tmp_path_factory.mktemp(name) / "checkpoint", family, **overrides)


@pytest.fixture(scope="module")
def bundle(name: str, commands: Commands, checkpoint: Path) -> Path:
    """The checkpoint compiled for this GPU; the compile proves every entry."""
    made, profile = checkpoint.parent / "bundle", MODELS[name][1]
    flags = ("--profile", profile, "--device", "cuda-sm90", "--max-seq-len", CONTEXT_LENGTH, "-o", str(made), "-q")
    commands.output("compile.cli", str(checkpoint), *flags)
    return made


@pytest.fixture(scope="module")
def passed(commands: Commands, bundle: Path) -> dict[str, Any]:
    """What a process of its own finds of IDS: whole, and behind states that were put back."""
    done = commands.python(PASSES, str(bundle), json.dumps(IDS))
    assert done.code == 0, done.stderr
    return json.loads(done.stdout)


def test_every_entry_was_proved(bundle: Path) -> None:
    proof = json.loads((bundle / layout.PROOF).read_text())
    assert proof["cases"] > 100
    assert proof["differing"] == 0, proof["first"]


def test_logits_are_those_of_transformers_in_float64(name: str, passed: dict[str, Any], checkpoint: Path) -> None:
    import torch
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(checkpoint, dtype=torch.float64).eval()
    with torch.no_grad():
        wanted = model(torch.tensor([IDS])).logits[0, -1].numpy()
    found = np.array(passed["logits"])
    assert np.linalg.norm(found - wanted) / np.linalg.norm(wanted) < {"fp32": 5e-5, "bf16": 5e-2}[MODELS[name][1]]


def test_a_text_goes_on_from_a_snapshot_in_any_slot(passed: dict[str, Any]) -> None:
    assert passed["again"] == dict.fromkeys(passed["again"], passed["digest"])
    assert passed["frameworks"] == []


def test_speculation_never_changes_an_answer(commands: Commands, bundle: Path) -> None:
    commands.output("runtime.checks.cli", "spec", str(bundle), "--quick")


def test_a_bundle_computes_what_it_was_sealed_with(commands: Commands, bundle: Path) -> None:
    commands.output("runtime.checks.cli", "identity", str(bundle), str(bundle))


def test_a_prompt_is_answered_the_same_with_and_without_drafts(commands: Commands, bundle: Path) -> None:
    flags = ("--prompt", "the quick brown fox jumps over the quick brown", "--raw", "--max-tokens", "40", "--json")
    answers = [
        json.loads(commands.output("runtime.cli", str(bundle), *flags, "--drafter", drafter))
        for drafter in ("none", "lookup")
    ]
    assert answers[0]["ids"] == answers[1]["ids"]
    assert len(answers[0]["ids"]) > 1
