"""A tiny checkpoint compiled for the GPU: proved, right to float64, the same in every process, as it was sealed."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from tandem.artifacts import layout
from tests.commands import Commands

IDS = [5, 17, 200, 31, 8, 8, 90, 301, 44, 12, 77]
LOGITS = """
import hashlib, json, sys
from pathlib import Path
from tandem.artifacts.reader import open_bundle
from tandem.keys import Kind
from tandem.runtime.checks.lab import Lab
from tandem.runtime.loading import open_executor
from tandem.runtime.rows import Span, extend_rows
executor = open_executor(open_bundle(Path(sys.argv[1])), num_pages=8)
lab, ids = Lab(executor, 1), json.loads(sys.argv[2])
executor.run(Kind.EXTEND, extend_rows([Span(0, 0, ids, outputs=1)], lab.table))
logits = executor.logits(0)
found = {"logits": logits.tolist(), "digest": hashlib.sha256(logits.tobytes()).hexdigest()}
found["frameworks"] = sorted({"torch", "triton", "transformers"} & set(sys.modules))
executor.close()
print(json.dumps(found))
"""


def logits(commands: Commands, bundle: Path) -> dict:
    """Logits after IDS, in a process of its own."""
    done = commands.python(LOGITS, str(bundle), json.dumps(IDS))
    assert done.code == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize(("profile", "error"), [("fp32", 5e-5), ("bf16", 5e-2)])
def test_logits_are_those_of_transformers_in_float64(
    commands: Commands, bundles: dict[str, Path], checkpoint: Path, profile: str, error: float
) -> None:
    import torch
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(checkpoint, dtype=torch.float64).eval()
    with torch.no_grad():
        wanted = model(torch.tensor([IDS])).logits[0, -1].numpy()
    found = np.array(logits(commands, bundles[profile])["logits"])
    assert np.linalg.norm(found - wanted) / np.linalg.norm(wanted) < error


def test_a_fresh_process_without_a_framework_restores_the_same_bits(
    commands: Commands, bundles: dict[str, Path]
) -> None:
    first, second = (logits(commands, bundles["bf16"]) for _ in range(2))
    assert first["digest"] == second["digest"]
    assert first["frameworks"] == []


def test_every_entry_was_proved(bundles: dict[str, Path]) -> None:
    for bundle in bundles.values():
        proof = json.loads((bundle / layout.PROOF).read_text())
        assert proof["cases"] > 100
        assert proof["differing"] == 0


@pytest.mark.parametrize("profile", ["bf16", "fp32"])
def test_speculation_never_changes_an_answer(commands: Commands, bundles: dict[str, Path], profile: str) -> None:
    commands.output("runtime.checks.cli", "spec", str(bundles[profile]), "--quick")


def test_a_bundle_computes_what_it_was_sealed_with(commands: Commands, bundles: dict[str, Path]) -> None:
    commands.output("runtime.checks.cli", "identity", str(bundles["bf16"]), str(bundles["bf16"]))


def test_two_builds_have_one_content_id(
    commands: Commands, bundles: dict[str, Path], checkpoint: Path, tmp_path: Path
) -> None:
    flags = ("--profile", "bf16", "--device", "cuda-sm90", "-o", str(tmp_path / "again"), "-q")
    commands.output("compile.cli", str(checkpoint), *flags)
    first, second = (json.loads((path / layout.MANIFEST).read_text()) for path in (bundles["bf16"], tmp_path / "again"))
    assert first["build_id"] == second["build_id"]
    assert first["content_id"] == second["content_id"]


def test_a_prompt_is_answered_the_same_with_and_without_drafts(commands: Commands, bundles: dict[str, Path]) -> None:
    flags = ("--prompt", "the quick brown fox jumps over the quick brown", "--raw", "--max-tokens", "40", "--json")
    answers = [
        json.loads(commands.output("runtime.cli", str(bundles["bf16"]), *flags, "--drafter", drafter))
        for drafter in ("none", "lookup")
    ]
    assert answers[0]["ids"] == answers[1]["ids"]
    assert len(answers[0]["ids"]) > 1
