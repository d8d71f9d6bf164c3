"""Drafter checkpoints: parameters made of the published tensors, and every kind of folder that is not one."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from tandem.compile.checkpoints.drafter import DrafterCheckpoint
from tandem.compile.models import dflash2
from tandem.compile.models.dflash2_config import resolve_drafter
from tandem.compile.models.dflash2_weights import drafter_sources, load_drafter
from tandem.errors import CheckpointError
from tests.compile.models.dflash2_oracle import TINY, make_drafter

SPEC = resolve_drafter(TINY)
Change = Callable[[dict[str, Tensor]], object]


def test_parameters_are_those_of_the_modules(tmp_path: Path) -> None:
    make_drafter(tmp_path)
    checkpoint = DrafterCheckpoint(tmp_path)
    assert resolve_drafter(checkpoint.config) == SPEC
    loaded = dict(load_drafter(SPEC, checkpoint))
    assert list(loaded) == list(drafter_sources(SPEC))
    modules: list[tuple[str, nn.Module]] = [("", dflash2.Fuse(SPEC)), ("", dflash2.Lattice(SPEC))]
    for layer in range(SPEC.num_hidden_layers):
        modules += [(f"layers.{layer}.", part(SPEC)) for part in (dflash2.Context, dflash2.Block)]
    wanted = {p + n: tuple(t.shape) for p, module in modules for n, t in module.named_parameters() if n != "head"}
    assert {name: tuple(tensor.shape) for name, tensor in loaded.items()} == wanted


def test_fused_parameters_hold_their_parts_in_order(tmp_path: Path) -> None:
    make_drafter(tmp_path)
    stored, loaded = load_file(tmp_path / "model.safetensors"), dict(load_drafter(SPEC, DrafterCheckpoint(tmp_path)))
    at = "layers.1."
    kv = [stored[f"{at}self_attn.{p}_proj.weight"] for p in "kv"]
    assert torch.equal(loaded[f"{at}kv"], torch.cat(kv))
    for name in ("attention", "mlp"):
        base = stored[f"{at}{name}_conv.base_kernel"]  # [side, tap, channel]
        assert torch.equal(loaded[f"{at}{name}_conv_in"].view_as(base[0]), base[0])
        assert torch.equal(loaded[f"{at}{name}_conv_out"].view_as(base[1]), base[1])


def damaged(folder: Path, change: Change) -> DrafterCheckpoint:
    make_drafter(folder)
    tensors = load_file(folder / "model.safetensors")
    change(tensors)
    save_file(tensors, folder / "model.safetensors")
    return DrafterCheckpoint(folder)


FC, KEYS = "fc.weight", "layers.0.self_attn.k_proj.weight"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda t: t.pop(FC), "lacks fc.weight; fetch it again"),
        (lambda t: t.update({KEYS: t[KEYS][:-1].clone()}), "has shape (19, 24), but the config wants (20, 24)"),
        (lambda t: t.update(extra=t[FC].clone()), "a DFlash2 drafter has no place for extra"),
        (lambda t: t.update({FC: t[FC].to(torch.float8_e4m3fn)}), "fc.weight is stored as F8_E4M3"),
        (lambda t: t[FC].view(-1)[3:4].fill_(torch.nan), "fc.weight has 1 values of"),
    ],
)
def test_tensors_that_do_not_fit(tmp_path: Path, change: Change, message: str) -> None:
    checkpoint = damaged(tmp_path, change)
    with pytest.raises(CheckpointError) as caught:
        list(load_drafter(SPEC, checkpoint))
    assert message in str(caught.value) and str(caught.value).startswith(str(tmp_path))


def test_folders_that_are_none(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"nowhere: no such folder: give the folder of a drafter"):
        DrafterCheckpoint(tmp_path / "nowhere")
    with pytest.raises(CheckpointError, match=r"config.json is missing"):
        DrafterCheckpoint(tmp_path)
    make_drafter(tmp_path)
    content = (tmp_path / "model.safetensors").read_bytes()
    (tmp_path / "model.safetensors").write_bytes(content[:-1])
    with pytest.raises(CheckpointError, match="truncated"):
        DrafterCheckpoint(tmp_path)


def test_the_digest_is_of_config_and_weights_wherever_they_lie(tmp_path: Path) -> None:
    make_drafter(tmp_path / "one")
    make_drafter(tmp_path / "two", TINY | {"transformers_version": "9"})
    digest = DrafterCheckpoint(tmp_path / "one").digest()
    assert DrafterCheckpoint(tmp_path / "two").digest() == digest
    make_drafter(tmp_path / "two", seed=1)
    assert DrafterCheckpoint(tmp_path / "two").digest() != digest
    make_drafter(tmp_path / "two", TINY | {"rms_norm_eps": 1e-6})
    assert DrafterCheckpoint(tmp_path / "two").digest() != digest
    # In two shards.
    tensors = load_file(tmp_path / "one/model.safetensors")
    names = sorted(tensors)
    shards = {"a.safetensors": names[:5], "b.safetensors": names[5:]}
    for file, part in shards.items():
        save_file({name: tensors[name] for name in part}, tmp_path / "one" / file)
    (tmp_path / "one/model.safetensors").unlink()
    weight_map = {name: file for file, part in shards.items() for name in part}
    (tmp_path / "one/model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    assert DrafterCheckpoint(tmp_path / "one").digest() == digest
