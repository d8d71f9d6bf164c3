"""Random checkpoints: complete for their family, the same again, scaled so that activations keep their size."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from bench.gpu import dense27b
from bench.gpu.random_checkpoint import RandomCheckpoint, RandomDrafter, drafter_config, resized, stored_bytes
from bench.gpu.shapes import DENSE27B, HYBRID27B, SMOLLM2, Shape
from tandem.compile.drafters import Dflash2
from tandem.compile.models.dflash2_config import resolve_drafter
from tandem.compile.models.dflash2_weights import drafter_sources, load_drafter
from tandem.compile.models.families import resolve
from tandem.compile.models.reference import ReferenceModel
from tandem.compile.models.weights import has_mtp, load, load_mtp, mtp_sources, weight_sources
from tandem.errors import CheckpointError

SMALL = replace(SMOLLM2, num_hidden_layers=2, hidden_size=64, intermediate_size=96, vocab_size=4500)

TINY_HYBRID = replace(
    HYBRID27B, num_hidden_layers=4, hidden_size=64, intermediate_size=96, vocab_size=4500, num_attention_heads=2,
    num_key_value_heads=1, head_dim=32, linear_num_key_heads=2, linear_num_value_heads=4, linear_key_head_dim=16,
    linear_value_head_dim=16,
)  # fmt: skip


def checkpoint(shape: Shape = SMALL, seed: int = 0) -> RandomCheckpoint:
    return RandomCheckpoint(shape, seed=seed, device="cpu")


def test_it_holds_what_its_family_wants_and_nothing_else() -> None:
    spec, made = resolve(SMALL.config()), checkpoint()
    loaded = dict(load(spec, made))
    assert {name: tuple(tensor.shape) for name, tensor in loaded.items()} == {
        name: source.shape for name, source in weight_sources(spec).items()
    }
    assert {tensor.dtype for tensor in loaded.values()} == {torch.bfloat16}


def test_a_hybrid_forgets_within_tokens_to_thousands_and_stays_finite() -> None:
    spec, made = resolve(TINY_HYBRID.config()), checkpoint(TINY_HYBRID)
    loaded = dict(load(spec, made))
    assert {name: tuple(t.shape) for name, t in loaded.items()} == {n: s.shape for n, s in weight_sources(spec).items()}
    for layer in range(3):
        rate = loaded[f"layers.{layer}.a_log"].float().exp()
        time = torch.nn.functional.softplus(loaded[f"layers.{layer}.dt_bias"].float())
        assert ((rate > 0.99) & (rate < 16.1)).all() and ((time > 9e-4) & (time < 0.11)).all()
        assert loaded[f"layers.{layer}.norm"].float().mean().item() == pytest.approx(1, abs=0.2)
        assert loaded[f"layers.{layer}.input_norm"].mean().item() == pytest.approx(1, abs=0.1)  # of 1 + w
    model = ReferenceModel(spec, loaded, torch.float32)
    logits = model.forward([(7 * i * i + 3) % 4500 for i in range(120)])
    assert logits.isfinite().all() and 0.1 < logits.std().item() < 10
    states = [state[1] for (state, _), kind in zip(model.caches, spec.layer_types, strict=True) if "linear" in kind]
    assert len(states) == 3 and all(0 < state.abs().max().item() < 100 for state in states)


def test_a_layer_that_drafts_comes_along_where_it_is_wanted() -> None:
    spec, made = resolve(TINY_HYBRID.config()), RandomCheckpoint(TINY_HYBRID, device="cpu", mtp=True)
    assert has_mtp(spec, made) and not has_mtp(spec, checkpoint(TINY_HYBRID))
    loaded = dict(load_mtp(spec, made))
    assert {name: tuple(t.shape) for name, t in loaded.items()} == {n: s.shape for n, s in mtp_sources(spec).items()}
    assert loaded["mtp.final_norm"].mean().item() == pytest.approx(1, abs=0.1)
    assert made.digest() != checkpoint(TINY_HYBRID).digest()


def test_a_block_drafter_is_one_for_its_shape() -> None:
    narrow = RandomDrafter(replace(TINY_HYBRID, num_hidden_layers=8), device="cpu")
    found = Dflash2.open(narrow, resolve(replace(TINY_HYBRID, num_hidden_layers=8).config()), "digest of the target")
    assert found.block.taps == (1, 3, 5, 6, 8)
    loaded = dict(load_drafter(found.block, narrow))
    assert {name: tuple(t.shape) for name, t in loaded.items()} == {
        name: source.shape for name, source in drafter_sources(found.block).items()
    }
    assert torch.equal(narrow.read("fc.weight"), narrow.read("fc.weight"))
    assert narrow.digest() != RandomDrafter(TINY_HYBRID, seed=1, device="cpu").digest()


def test_the_drafter_of_the_27b_is_as_large_as_the_published_one() -> None:
    """Taps and bytes of `z-lab/Qwen3.8-27B-DFlash2`: 3.849 GB."""
    made = RandomDrafter(HYBRID27B, device="cpu")
    assert resolve_drafter(drafter_config(HYBRID27B)).taps == (5, 19, 33, 47, 61)
    assert stored_bytes(made) == 2 * 1_924_404_480


def test_a_tensor_is_the_same_each_time_and_another_under_each_name_and_seed() -> None:
    q, k = "model.layers.0.self_attn.q_proj.weight", "model.layers.1.self_attn.q_proj.weight"
    assert torch.equal(checkpoint().read(q), checkpoint().read(q))
    assert not torch.equal(checkpoint().read(q), checkpoint().read(k))
    assert not torch.equal(checkpoint().read(q), checkpoint(seed=1).read(q))


def test_matrices_keep_the_size_of_what_goes_through_and_norms_stand_at_one() -> None:
    made = checkpoint()
    down = made.read("model.layers.0.mlp.down_proj.weight").float()
    assert down.std().item() == pytest.approx(96**-0.5, rel=0.1)
    assert made.read("model.norm.weight").float().mean().item() == pytest.approx(1, abs=0.1)


def test_its_digest_is_that_of_the_recipe() -> None:
    digests = {checkpoint().digest(), checkpoint(seed=1).digest(), checkpoint(replace(SMALL, rope_theta=2e5)).digest()}
    assert len(digests) == 3
    assert checkpoint().digest() in digests


def test_a_tensor_it_has_not_is_refused_by_name() -> None:
    with pytest.raises(CheckpointError, match=r"has no tensor model\.nothing"):
        checkpoint().read("model.nothing")


def test_content_is_the_bytes_of_the_tensor() -> None:
    made, name = checkpoint(), "model.layers.1.mlp.gate_proj.weight"
    assert bytes(made.content(name)) == made.read(name).view(torch.uint8).numpy().tobytes()


def test_a_shape_is_made_smaller_for_a_try() -> None:
    assert resized(DENSE27B, 2, None, 5000) == replace(DENSE27B, num_hidden_layers=2, vocab_size=5000)
    assert resized(DENSE27B, None, None, None) == DENSE27B


def test_a_build_says_when_its_stages_begin(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dense27b, "OFTEN_S", -1.0)
    with dense27b.Stages(quiet=True) as progress:
        progress.stage("weights", 50)
        progress.advance(10)
        progress.advance(10, "head")
    lines = [line.split(" s  ")[1] for line in capsys.readouterr().err.splitlines()]
    assert lines == ["weights", "  head"]


def test_a_place_without_room_is_refused_with_what_is_needed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def usage(path: Path) -> SimpleNamespace:
        assert path == tmp_path
        return SimpleNamespace(free=40e9)

    monkeypatch.setattr(dense27b.shutil, "disk_usage", usage)
    assert dense27b.lack_of_room(tmp_path / "new" / "bundle", stored_bytes(checkpoint(SMOLLM2))) is None
    fault = dense27b.lack_of_room(tmp_path / "new" / "bundle", DENSE27B.step_bytes)
    assert fault is not None and "40.0 GB free" in fault and "remount,size=110g" in fault
