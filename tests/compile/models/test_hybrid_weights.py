"""A hybrid's parameters made from checkpoint tensors, what is set aside, and every tensor that does not fit."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
import torch
from torch import Tensor

from tandem.compile.models.families import resolve
from tandem.compile.models.llama import Embed, Head
from tandem.compile.models.qwen3_5 import AttentionBlock, RecurrentBlock
from tandem.compile.models.spec import FULL_ATTENTION, HybridSpec
from tandem.compile.models.weights import load, load_mtp, weight_name, weight_sources
from tandem.errors import CheckpointError
from tests.compile.models import oracle
from tests.compile.models.oracle import Tensors, read_config, read_tensors
from tests.tiny import HYBRIDS, make_checkpoint
from tests.tiny_hybrid import add_mtp, wrap

RECURRENT, ATTENTION = "model.layers.0.linear_attn.", "model.layers.3.self_attn."


def tiny(folder: Path, family: str = "qwen3_5", **overrides: object) -> tuple[HybridSpec, Tensors]:
    make_checkpoint(folder, family, **overrides)
    return spec_of(folder), read_tensors(folder)


def spec_of(folder: Path) -> HybridSpec:
    spec = resolve(read_config(folder))
    assert isinstance(spec, HybridSpec)
    return spec


@pytest.mark.parametrize("family", HYBRIDS)
def test_parameters_are_those_of_the_modules(tmp_path: Path, family: str) -> None:
    spec, tensors = tiny(tmp_path, family)
    wanted: dict[str, tuple[int, ...]] = {}
    blocks = [AttentionBlock(spec) if t == FULL_ATTENTION else RecurrentBlock(spec) for t in spec.layer_types]
    for module, layer in ((Embed(spec), None), *((block, i) for i, block in enumerate(blocks)), (Head(spec), None)):
        wanted |= {weight_name(spec, name, layer): tuple(p.shape) for name, p in module.named_parameters()}
    sources = weight_sources(spec)
    assert {name: source.shape for name, source in sources.items()} == wanted
    loaded = dict(load(spec, tensors))
    assert list(loaded) == list(sources)
    assert {name: tuple(tensor.shape) for name, tensor in loaded.items()} == wanted


def test_parameters_hold_what_their_operators_read(tmp_path: Path) -> None:
    spec, tensors = tiny(tmp_path)
    loaded = dict(load(spec, tensors))
    conv = loaded["layers.0.conv"].view(4, -1)
    assert torch.equal(conv[0], tensors.read(f"{RECURRENT}conv1d.weight")[:, 0, 0])  # the oldest tap
    assert torch.equal(conv[3], tensors.read(f"{RECURRENT}conv1d.weight")[:, 0, 3])
    assert torch.equal(loaded["layers.0.ba"][6:], tensors.read(f"{RECURRENT}in_proj_a.weight"))
    assert torch.equal(loaded["layers.0.norm"], tensors.read(f"{RECURRENT}norm.weight"))
    assert torch.equal(loaded["final_norm"], 1 + tensors.read("model.norm.weight"))
    q, k = (tensors.read(f"{ATTENTION}{name}_proj.weight") for name in "qk")
    qkvg = loaded["layers.3.qkvg"]
    assert torch.equal(qkvg[24:48], q[48:72])  # the query of head 1; its gate stands behind it in the checkpoint
    assert torch.equal(qkvg[72:96], k)
    assert torch.equal(qkvg[120 + 24 : 120 + 48], q[72:96])


def test_one_plus_a_bfloat16_norm_is_not_rounded(tmp_path: Path) -> None:
    spec, tensors = tiny(tmp_path)
    name = f"{ATTENTION}q_norm.weight"
    small = torch.full((24,), 2.0**-12, dtype=torch.bfloat16)
    found = dict(load(spec, Tensors(tensors.tensors | {name: small})))["layers.3.q_norm"]
    assert found.dtype == torch.float32
    assert found.tolist() == [1 + 2.0**-12] * 24


@pytest.mark.parametrize("family", HYBRIDS)
def test_a_vision_language_checkpoint_is_its_text_model(
    tmp_path: Path, family: str, caplog: pytest.LogCaptureFixture
) -> None:
    spec, tensors = tiny(tmp_path / "text", family)
    folder = wrap(make_checkpoint(tmp_path / "whole", family))
    with caplog.at_level(logging.WARNING, "tandem.compile"):
        found, whole = dict(load(spec_of(folder), read_tensors(folder))), read_tensors(folder)
    vision = [name for name in whole.names() if name.startswith("model.visual.")]
    assert len(vision) > 10
    assert [record.getMessage() for record in caplog.records] == [
        f"tiny: skipped {len(vision)} vision tensors; this build is of the text model"
    ]
    assert spec_of(folder) == spec
    wanted = dict(load(spec, tensors))
    assert found.keys() == wanted.keys()
    assert all(torch.equal(found[name], wanted[name]) for name in wanted)


def test_logits_of_a_wrapped_model_are_those_of_transformers(tmp_path: Path) -> None:
    import transformers

    folder, ids = wrap(make_checkpoint(tmp_path, "qwen3_5")), [7, 300, 2, 41, 5]
    theirs = transformers.Qwen3_5ForConditionalGeneration.from_pretrained(folder, dtype=torch.float32).eval()
    wanted = oracle.logits(theirs, ids)
    found = oracle.reference(folder, torch.float32).forward(ids)
    assert (found - wanted).abs().max() <= 1e-5 * wanted.abs().max()


@pytest.mark.parametrize(
    "name",
    [
        *(f"{RECURRENT}{name}" for name in ("A_log", "dt_bias", "norm.weight", "conv1d.weight", "in_proj_a.weight")),
        *(f"{ATTENTION}{name}_norm.weight" for name in "qk"),
        "model.layers.2.input_layernorm.weight",
        "model.norm.weight",
    ],
)
def test_what_is_not_finite_is_named(tmp_path: Path, name: str) -> None:
    """A state that meets it once is never rid of it."""
    spec, tensors = tiny(tmp_path)
    for value in (float("nan"), float("inf")):
        wrong = tensors.read(name).clone()
        wrong.view(-1)[-1] = value
        with pytest.raises(CheckpointError, match=rf"^tiny: {name} has 1 values of {wrong.numel()} that are NaN"):
            dict(load(spec, Tensors(tensors.tensors | {name: wrong})))


@pytest.mark.parametrize("family", HYBRIDS)
def test_a_drafting_layer_is_recognised_and_kept_apart(tmp_path: Path, family: str) -> None:
    spec, tensors = tiny(tmp_path, family)
    assert dict(load_mtp(spec, tensors)) == {}
    stored = add_mtp(tmp_path)
    found = read_tensors(tmp_path)
    assert dict(load(spec, found)).keys() == dict(load(spec, tensors)).keys()
    drafting = dict(load_mtp(spec, found))
    halves = drafting["mtp.fc_embedding"], drafting["mtp.fc_hidden"]
    assert torch.equal(torch.cat(halves, 1), stored["mtp.fc.weight"])
    assert torch.equal(drafting["mtp.hidden_norm"], 1 + stored["mtp.pre_fc_norm_hidden.weight"])
    block = {name.removeprefix("mtp.layers.0."): t.shape for name, t in drafting.items() if "layers" in name}
    assert block == {name: parameter.shape for name, parameter in AttentionBlock(spec).named_parameters()}
    for name in ("mtp.fc.weight", "mtp.layers.0.self_attn.q_norm.weight"):
        rest = {n: t for n, t in found.tensors.items() if n != name}
        _refused(spec, rest, name, "lacks")
    _refused(spec, found.tensors | {"mtp.layers.1.mlp.up_proj.weight": torch.zeros(1)}, "mtp.layers.1.mlp")


@pytest.mark.parametrize("part", ("A_log", "dt_bias", "conv1d.weight", "in_proj_qkv.weight", "norm.weight"))
def test_missing_recurrent_tensors_are_named(tmp_path: Path, part: str) -> None:
    spec, tensors = tiny(tmp_path)
    name = RECURRENT + part
    _refused(spec, {n: t for n, t in tensors.tensors.items() if n != name}, name, "lacks", "tiny")


def test_unexpected_recurrent_tensors_are_named(tmp_path: Path) -> None:
    spec, tensors = tiny(tmp_path)
    for part in ("conv1d.bias", "in_proj_qkvz.weight", "D"):
        _refused(spec, tensors.tensors | {RECURRENT + part: torch.zeros(1)}, RECURRENT + part, "qwen3_5")
    name = "model.layers.0.self_attn.q_proj.weight"  # a layer that the config says is recurrent
    _refused(spec, tensors.tensors | {name: torch.zeros(1)}, name)
    name = f"{RECURRENT}conv1d.weight"
    _refused(spec, tensors.tensors | {name: torch.zeros(168, 1, 3)}, name, "(168, 1, 3)", "(168, 1, 4)")


def _refused(spec: HybridSpec, tensors: dict[str, Tensor], *words: str) -> None:
    with pytest.raises(CheckpointError) as caught:
        load(spec, Tensors(tensors))
    assert "\n" not in str(caught.value)
    assert all(word in str(caught.value) for word in words)
