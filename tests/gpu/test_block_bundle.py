"""Bundles with a block drafter on the GPU: entries proved, lattices against float64, texts that no draft changes."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from tandem.artifacts import layout
from tandem.compile.checkpoints.drafter import DrafterCheckpoint
from tandem.compile.checkpoints.open import open_checkpoint
from tandem.compile.models.dflash2_config import resolve_drafter
from tandem.compile.models.dflash2_reference import ReferenceDrafter
from tandem.compile.models.dflash2_weights import load_drafter
from tandem.compile.models.families import resolve
from tandem.compile.models.weights import load
from tandem.compile.train.drafter.target import Target
from tests.commands import Commands
from tests.tiny import make_checkpoint
from tests.tiny_drafter import make_drafter

MODELS = {"llama": ("fp32", {}), "qwen3_5": ("bf16", {"block_size": 16, "selector_top_k": 16})}
"""Profile, and what a drafter's section has of its own."""
ERRORS = {"fp32": 2e-4, "bf16": 8e-2}
"""Of logits and scores against float64, as a share of their norm."""
LANES = 8
DRAFTED = """
import json, sys
from pathlib import Path
from tandem.artifacts.reader import open_bundle
from tandem.keys import Kind
from tandem.runtime.checks.drafting import DraftLab
from tandem.runtime.checks.lab import Lab
from tandem.runtime.loading import open_executor
from tandem.runtime.rows import block_rows

executor = open_executor(open_bundle(Path(sys.argv[1])), num_pages=32)
texts, block = json.loads(sys.argv[2]), executor.geometry.drafter.block
lab, lanes = Lab(executor, len(texts)), range(len(texts))
for lane, ids in enumerate(texts):
    taps = [len(ids) * lane + i for i in range(len(ids) - 1)]
    lab.extend(lane, ids[:-1], 0, 1, taps)
    DraftLab(lab).sync(lane, ids[:-1], 0, taps)
starts, anchors = [len(ids) - 1 for ids in texts], [ids[-1] for ids in texts]
found = executor.draft(Kind.DRAFT, block_rows(lanes, starts, anchors, block, lab.table))
told = {name: getattr(found, name).tolist() for name in ("token", "logit", "lse", "score", "walk")}
executor.close()
told["frameworks"] = sorted({"torch", "triton", "transformers"} & set(sys.modules))
print(json.dumps(told))
"""


@pytest.fixture(scope="module", params=list(MODELS))
def name(request: pytest.FixtureRequest) -> str:
    return request.param  # type: ignore[no-any-return]


@pytest.fixture(scope="module")
def checkpoint(name: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = make_checkpoint(tmp_path_factory.mktemp(name) / "checkpoint", name)
    make_drafter(made.parent / "drafter", made, **MODELS[name][1])
    return made


@pytest.fixture(scope="module")
def bundle(name: str, commands: Commands, checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The checkpoint compiled for this GPU with its drafter; the compile proves every entry."""
    made = tmp_path_factory.mktemp("blocks") / name
    flags = ("--profile", MODELS[name][0], "--device", "cuda-sm90", "--drafter", str(checkpoint.parent / "drafter"))
    commands.output("compile.cli", str(checkpoint), *flags, "--max-seq-len", "1000", "-o", str(made), "-q")
    return made


def test_every_entry_was_proved_and_priced(name: str, bundle: Path) -> None:
    proof = json.loads((bundle / layout.PROOF).read_text())
    assert proof["cases"] > 1000 and proof["differing"] == 0, proof["first"]
    table, rows = json.loads((bundle / layout.PRICES).read_text())["1000"], MODELS[name][1].get("block_size", 5)
    assert 0 < table["draft"][str(rows)] <= table["draft"][str(LANES * rows)]
    assert 0 < table["sync"]["1"] <= table["sync"]["512"]


def test_lattices_of_all_lanes_are_those_of_the_definitions_in_float64(
    name: str, commands: Commands, bundle: Path, checkpoint: Path
) -> None:
    texts = [[(7 * i * i + 3 + lane) % 300 for i in range(20 + 12 * lane)] for lane in range(LANES)]
    done = commands.python(DRAFTED, str(bundle), json.dumps(texts))
    assert done.code == 0, done.stderr
    told = json.loads(done.stdout)
    assert told["frameworks"] == []
    source, drafter = open_checkpoint(str(checkpoint)), DrafterCheckpoint(checkpoint.parent / "drafter")
    spec, block = resolve(source.config), resolve_drafter(drafter.config)
    tensors = {part: tensor.double() for part, tensor in load(spec, source)}
    target = Target(spec, tensors, torch.float64, torch.device("cpu"))
    held = ReferenceDrafter(
        block, dict(load_drafter(block, drafter)), target.embedding, target.head, lanes=LANES, context_length=128
    )
    for lane, ids in enumerate(texts):
        held.sync({lane: target.sequence(torch.tensor([ids[:-1]]), block.taps)[0][0]})
    exact = held.draft({lane: ids[-1] for lane, ids in enumerate(texts)})
    slots, profile, agreed = block.block_size - 1, MODELS[name][0], list[bool]()
    for lane, wanted in enumerate(exact):
        found = {part: np.array(told[part][lane * slots : (lane + 1) * slots]) for part in ("token", "walk")}
        agreed += (found["token"] == wanted.token.numpy()).all(1).tolist()
        near = ["logit", "lse"]  # in bf16 near ties change places, and with them scores and walk
        if profile == "fp32":
            assert found["token"].tolist() == wanted.token.tolist() and found["walk"].tolist() == wanted.walk.tolist()
            near.append("score")
        for part in near:
            ours, theirs = np.array(told[part][lane * slots : (lane + 1) * slots]), getattr(wanted, part).numpy()
            assert np.linalg.norm(ours - theirs) < ERRORS[profile] * np.linalg.norm(theirs), f"{part} of lane {lane}"
    assert np.mean(agreed) >= (1.0 if profile == "fp32" else 0.1)


def test_speculation_never_changes_an_answer(commands: Commands, bundle: Path) -> None:
    commands.output("runtime.checks.cli", "spec", str(bundle), "--quick")
