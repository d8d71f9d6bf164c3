"""The gate's figures against Transformers in float64, and weights that were damaged on purpose."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from tandem.artifacts.program import encode
from tandem.artifacts.quality import Quality
from tandem.artifacts.weights import MappedWeights
from tandem.compile.checkpoints.base import Checkpoint
from tandem.compile.checkpoints.open import open_checkpoint
from tandem.compile.cpu import panels
from tandem.compile.cpu.composer import CpuComposer
from tandem.compile.examine import Staged
from tandem.compile.gate.limits import faults
from tandem.compile.gate.material import Material, make_material
from tandem.compile.gate.measure import measure_quality, write_reference
from tandem.compile.plan import Plan, make_plan
from tandem.compile.store import write_weights
from tandem.kernels.build import read_signatures
from tandem.keys import Kind
from tests.kernels.harness import library
from tests.tiny import make_checkpoint

CONTEXT = 128


@dataclass(frozen=True, slots=True)
class Bench:
    """A sound checkpoint, and the same with noise in one matrix."""

    sound: Path
    damaged: Path
    checkpoint: Checkpoint
    material: Material

    def plan(self, profile: str) -> Plan:
        return make_plan(self.checkpoint, "0" * 64, name="tiny", profile=profile, device="auto", context_length=CONTEXT)

    def measure(self, folder: Path, profile: str, weights_of: Path) -> Quality:
        """The quality of `weights_of` in `profile`, held against the sound checkpoint."""
        plan, weights, program = self.plan(profile), folder / "weights", folder / "extend"
        write_weights(
            plan.spec, plan.profile, open_checkpoint(str(weights_of)), weights, layout=panels, context_length=CONTEXT
        )
        signatures, mapped = read_signatures(library()), MappedWeights(weights)
        composer = CpuComposer(plan.spec, plan.profile, plan.geometry, mapped, signatures, "0" * 64)
        program.write_bytes(encode(composer.program(Kind.EXTEND)))
        staged = Staged(plan.geometry, weights, library(), {Kind.EXTEND: program}, threads=1)
        reference = write_reference(plan, self.checkpoint, folder)
        return measure_quality(plan, self.checkpoint, staged, reference, lambda step: None)


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Bench:
    folder = tmp_path_factory.mktemp("gate")
    sound = make_checkpoint(folder / "sound", "llama", num_hidden_layers=2)
    tensors = load_file(sound / "model.safetensors")
    tensors["lm_head.weight"] *= 5  # random weights are confident nowhere
    save_file(tensors, sound / "model.safetensors", metadata={"format": "pt"})
    shutil.copytree(sound, folder / "damaged")
    head = tensors["lm_head.weight"]
    head += 0.2 * torch.randn(head.shape, generator=torch.Generator().manual_seed(1))
    save_file(tensors, folder / "damaged" / "model.safetensors", metadata={"format": "pt"})
    checkpoint = open_checkpoint(str(sound))
    return Bench(
        sound, folder / "damaged", checkpoint, make_material(checkpoint, CONTEXT, checkpoint.config["vocab_size"])
    )


@dataclass(frozen=True, slots=True)
class Oracle:
    """What Transformers makes of the texts in float64: per text, and choices and gaps over both."""

    losses: list[float]
    choice: torch.Tensor
    gap: torch.Tensor
    answers: list[list[int]]


def oracle(path: Path, material: Material, stop_ids: tuple[int, ...]) -> Oracle:
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float64)
    losses, logits = [], []
    with torch.no_grad():
        for cut in material.texts.values():
            parts = [model(torch.tensor([ids[:-1]])).logits[0] for ids in cut]
            targets = torch.tensor([token for ids in cut for token in ids[1:]])
            losses.append(torch.nn.functional.cross_entropy(torch.cat(parts), targets).item())
            logits += parts
        answers = []
        for prompt in material.prompts:
            ids = list(prompt)
            while len(ids) < len(prompt) + material.answer_tokens and ids[len(prompt) :][-1:] not in [
                [i] for i in stop_ids
            ]:
                ids.append(int(model(torch.tensor([ids])).logits[0, -1].argmax()))
            answers.append(ids[len(prompt) :])
    top = torch.cat(logits).topk(2)
    return Oracle(losses, top.indices[:, 0], top.values[:, 0] - top.values[:, 1], answers)


def test_figures_are_those_of_transformers_in_float64(bench: Bench, tmp_path: Path) -> None:
    found = bench.measure(tmp_path, "fp32", bench.damaged)
    stop_ids = bench.checkpoint.stop_ids
    theirs, ours = (oracle(path, bench.material, stop_ids) for path in (bench.sound, bench.damaged))
    assert [text.reference_loss for text in found.texts] == pytest.approx(theirs.losses, abs=2e-6)
    assert [text.loss for text in found.texts] == pytest.approx(ours.losses, abs=2e-6)
    equal, confident = theirs.choice == ours.choice, theirs.gap >= 1.0
    counts = [len(equal), equal.sum().item(), confident.sum().item(), (equal & confident).sum().item()]
    agreement = found.agreement
    assert [agreement.positions, agreement.equal, agreement.confident, agreement.confident_equal] == counts
    assert counts[0] == 4096 and 100 < counts[3] < counts[2] < counts[0] > counts[1]
    generation = found.generation
    assert generation.tokens == sum(map(len, ours.answers))
    assert generation.reference_tokens == sum(map(len, theirs.answers))
    assert generation.stops == sum(ids[-1] in stop_ids for ids in ours.answers)
    grams = [list(zip(*(ids[i:] for i in range(4)), strict=False)) for ids in theirs.answers]
    share = sum(len(set(g)) for g in grams) / sum(map(len, grams))
    assert generation.reference_unique_4grams == pytest.approx(share, abs=1e-6)


def test_damaged_weights_do_not_hold(bench: Bench, tmp_path: Path) -> None:
    found = bench.measure(tmp_path, "bf16", bench.damaged)
    assert not found.held and faults(found)
    assert found.texts[0].rise > 0.05 and found.agreement.confident_share < 0.99


def test_bf16_holds_and_repeats_bit_by_bit(bench: Bench, tmp_path: Path) -> None:
    folders = [tmp_path / name for name in ("one", "two")]
    for folder in folders:
        folder.mkdir()
    first, second = (bench.measure(folder, "bf16", bench.sound) for folder in folders)
    assert first == second and first.held
    assert first.agreement.confident_equal == first.agreement.confident > 0
    assert all(abs(text.rise) < 0.01 for text in first.texts)


def test_low_bit_profiles_hold(bench: Bench, tmp_path: Path) -> None:
    assert bench.measure(tmp_path, "int8", bench.sound).held


def test_no_number_is_an_error(bench: Bench, tmp_path: Path) -> None:
    from tandem.errors import QualityError

    broken = shutil.copytree(bench.sound, tmp_path / "broken")
    tensors: dict[str, Any] = load_file(broken / "model.safetensors")
    tensors["model.norm.weight"][:] = 3e38  # finite, but no sum of these is
    save_file(tensors, broken / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(QualityError, match="is no number"):
        bench.measure(tmp_path, "fp32", broken)
