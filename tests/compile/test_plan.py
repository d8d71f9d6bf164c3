"""Plans: capacities by hand, every wish that cannot be, and what the build id depends on."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from tandem.artifacts.weights import MappedWeights
from tandem.compile.checkpoints.open import open_checkpoint
from tandem.compile.cpu import panels, target
from tandem.compile.models.families import resolve
from tandem.compile.models.weights import load
from tandem.compile.plan import Plan, make_plan
from tandem.compile.profile import find_profile
from tandem.compile.store import write_weights
from tandem.device import ISA_FLAGS, Machine, this_machine
from tandem.errors import CheckpointError, CompileError, UsageError
from tests.tiny import make_checkpoint


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_checkpoint(tmp_path_factory.mktemp("plan") / "a", "qwen3")


def plan(folder: Path, **wishes: object) -> Plan:
    checkpoint = open_checkpoint(str(folder))
    options = {"name": "tiny", "profile": "bf16", "device": "auto", "context_length": None, **wishes}
    return make_plan(checkpoint, checkpoint.digest(), **options)  # type: ignore[arg-type]


def test_capacities_are_those_worked_by_hand(folder: Path) -> None:
    """qwen3: 3 layers, 2 kv heads of 20, padded to 32 in the value pages; 64 tokens a page."""
    made = plan(folder, context_length=300)
    g = made.geometry
    assert (g.context_length, g.vocab_size, g.page_tokens, g.max_outputs) == (300, 333, 64, 32)
    assert g.max_rows == 128 and g.max_lanes >= 4
    assert g.kv_planes == ((2 * 20, 2), (2, 32 * 2))
    assert g.page_bytes == 3 * 64 * (2 * 20 * 2 + 2 * 32 * 2)
    assert plan(folder, profile="fp32").geometry.page_bytes == 2 * g.page_bytes
    assert plan(folder).geometry.context_length == 2048
    assert plan(folder, context_length=64).geometry.max_rows == 64
    assert made.summary()["kv_bytes_per_token"] == 3 * (2 * 20 * 2 + 2 * 32 * 2)
    assert made.summary()["programs"] == 4


def test_capacities_of_a_hybrid_are_those_worked_by_hand(tmp_path: Path) -> None:
    """qwen3_5: 3 of 4 layers recurrent; 2 key heads of 12, 6 value heads of 20, so 168 channels, 3 taps kept."""
    made = plan(make_checkpoint(tmp_path / "hybrid", "qwen3_5"), device="cpu", context_length=300)
    g = made.geometry
    assert (g.recurrent_layers, g.num_layers) == (3, 1)
    assert g.state_bytes == 3 * 4 * (6 * 12 * 20 + 3 * 168)
    assert g.factor_bytes == 3 * 4 * 32 * (168 + 2 * 12 + 6 * 20 + 6)
    assert g.page_bytes == 64 * (24 * 2 + 32 * 2)
    assert made.summary()["state_bytes_per_lane"] == g.state_bytes
    assert (
        plan(tmp_path / "hybrid", profile="fp32", context_length=300, device="cpu").geometry.state_bytes
        == g.state_bytes
    )


def test_what_a_state_forgets_by_is_never_of_few_bits() -> None:
    for name, form in (("fp32", "fp32"), ("bf16", "bf16"), ("int8", "bf16"), ("int4", "bf16")):
        profile = find_profile(name)
        assert profile.format("ba", (12, 48)) == profile.format("layers.3.ba", (12, 48)) == form
        assert profile.format("layers.3.qkvz", (288, 48)) == profile.matrix


def test_a_long_context_is_planned_only_when_asked_for(tmp_path: Path) -> None:
    long = make_checkpoint(tmp_path / "long", "llama", max_position_embeddings=1_000_000)
    assert plan(long).geometry.context_length == 131_072
    assert plan(long, context_length=1_000_000).geometry.context_length == 1_000_000


@pytest.mark.parametrize("profile", ["fp32", "bf16"])
def test_weight_bytes_are_those_that_are_written(folder: Path, tmp_path: Path, profile: str) -> None:
    made, checkpoint = plan(folder, profile=profile), open_checkpoint(str(folder))
    write_weights(made.spec, made.profile, checkpoint, tmp_path / "w", layout=panels, context_length=64)
    spans = MappedWeights(tmp_path / "w").spans
    assert made.weight_bytes == sum(s.nbytes for n, s in spans.items() if not n.startswith(("pad.", "rope.")))


@pytest.mark.parametrize(
    ("name", "shape", "words"),
    [
        ("model.layers.1.mlp.up_proj.weight", (), "lacks model.layers.1.mlp.up_proj.weight; fetch it again"),
        ("model.norm.weight", (49,), r"model.norm.weight has shape \(49,\)"),
        ("model.layers.0.mlp.up_proj.bias", (112,), "no place for model.layers.0.mlp.up_proj.bias"),
    ],
)
def test_tensors_are_those_of_the_config(
    folder: Path, tmp_path: Path, name: str, shape: tuple[int, ...], words: str
) -> None:
    """As they are for who reads them."""
    wrong = shutil.copytree(folder, tmp_path / "wrong")
    tensors = load_file(folder / "model.safetensors") | {name: torch.zeros(shape)}
    save_file({n: tensor for n, tensor in tensors.items() if tensor.dim()}, wrong / "model.safetensors")
    with pytest.raises(CheckpointError, match=words) as planned:
        plan(wrong)
    with pytest.raises(CheckpointError) as read:
        load(resolve(open_checkpoint(str(wrong)).config), open_checkpoint(str(wrong)))
    assert str(planned.value) == str(read.value)


@pytest.mark.parametrize(
    ("dtype", "word"),
    [(torch.int8, "I8"), (torch.int64, "I64"), (torch.bool, "BOOL"), (torch.float8_e4m3fn, "F8_E4M3")],
)
def test_tensors_that_are_no_weights_as_they_stand(folder: Path, tmp_path: Path, dtype: torch.dtype, word: str) -> None:
    """In the model, and in a head that is stored although it is tied."""
    tied = make_checkpoint(tmp_path / "tied", "smollm2")
    for model, name, like in (
        (folder, "model.layers.1.self_attn.q_norm.weight", "model.layers.1.self_attn.q_norm.weight"),
        (tied, "lm_head.weight", "model.embed_tokens.weight"),
    ):
        wrong, tensors = shutil.copytree(model, tmp_path / name), load_file(model / "model.safetensors")
        save_file(tensors | {name: tensors[like].to(dtype)}, wrong / "model.safetensors")
        with pytest.raises(CheckpointError, match=rf"{name} is stored as {word}; wanted F64, F32, F16 or BF16: start"):
            plan(wrong)


@pytest.mark.parametrize("end", [-1, 333])
def test_a_text_ends_at_an_id_of_the_vocabulary(folder: Path, tmp_path: Path, end: int) -> None:
    wrong = shutil.copytree(folder, tmp_path / "wrong")
    (wrong / "generation_config.json").write_text(f'{{"eos_token_id": [2, {end}]}}')
    with pytest.raises(CheckpointError, match=rf"^{wrong}: texts end at id {end}, .* vocabulary of 333: correct eos_"):
        plan(wrong)


@pytest.mark.parametrize("context", [-1, 0, 63, 2049])
def test_impossible_contexts(folder: Path, context: int) -> None:
    with pytest.raises(UsageError, match=f"--max-seq-len {context}: for this model it may be 64 to 2048 tokens"):
        plan(folder, context_length=context)


def test_a_model_for_very_short_texts_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CompileError, match="max_position_embeddings = 32; a bundle holds at least 64"):
        plan(make_checkpoint(tmp_path / "short", "llama", max_position_embeddings=32))


@pytest.mark.parametrize(
    "device", ["", "gpu", "cudasm90", "cpu-", "cpu-x86-64-v9", "auto-x", "x86-64-v3", "cpux86-64-v3"]
)
def test_unknown_devices(folder: Path, device: str) -> None:
    with pytest.raises(UsageError, match=f"--device {device}: this build knows cpu, cpu-x86-64-v2, "):
        plan(folder, device=device)


def test_devices_by_name(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    small = Machine("x86-64", "x86-64-v2", frozenset(ISA_FLAGS["x86-64-v2"]), "linux-glibc", "old", 2, 1 << 30)
    monkeypatch.setattr(target, "this_machine", lambda: small)
    for device in ("auto", "cpu", "cpu-x86-64-v2"):
        assert plan(folder, device=device).device == "cpu-x86-64-v2"
    assert plan(folder, device="cpu-generic").device == "cpu-generic"
    with pytest.raises(
        UsageError, match=r"--device cpu-x86-64-v3: this CPU lacks abm, avx, .*; use --device cpu-x86-64-v2"
    ):
        plan(folder, device="cpu-x86-64-v3")


def test_the_build_id_is_that_of_what_decides_the_bytes(folder: Path, tmp_path: Path) -> None:
    first = plan(folder).resolved.build_id()
    same = make_checkpoint(tmp_path / "elsewhere", "qwen3", shards=2)
    assert plan(same).resolved.build_id() == plan(folder, name="other").resolved.build_id() == first
    other = make_checkpoint(tmp_path / "other", "qwen3", seed=1)
    ids = [p.resolved.build_id() for p in (plan(other), plan(folder, profile="fp32"), plan(folder, context_length=256))]
    if this_machine().isa_level.startswith("x86-64"):
        ids.append(plan(folder, device="cpu-generic").resolved.build_id())
    assert len({first, *ids}) == 1 + len(ids)


def test_the_build_id_knows_the_tools(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = plan(folder).resolved
    compiler = tmp_path / "cxx"
    compiler.write_text("#!/bin/sh\necho 'cxx 99'\n")
    compiler.chmod(0o755)
    monkeypatch.setenv("CXX", str(compiler))
    second = plan(folder).resolved
    assert second.tools["compiler"] == "cxx 99" and first.build_id() != second.build_id()
    assert str(tmp_path) not in repr(second)
