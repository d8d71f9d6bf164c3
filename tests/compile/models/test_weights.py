"""Parameters fused from checkpoint tensors, and every kind of tensor that does not fit."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor

from tandem.compile.models.families import resolve
from tandem.compile.models.llama import Block, Embed, Head
from tandem.compile.models.spec import LlamaSpec
from tandem.compile.models.weights import load, weight_name, weight_sources
from tandem.errors import CheckpointError
from tests.compile.models.oracle import Tensors, read_config, read_tensors
from tests.tiny import FAMILIES, make_checkpoint

EMBEDDING, HEAD = "model.embed_tokens.weight", "lm_head.weight"


def tiny(folder: Path, family: str = "llama", **overrides: object) -> tuple[LlamaSpec, Tensors]:
    make_checkpoint(folder, family, num_hidden_layers=2, **overrides)
    return resolve(read_config(folder)), read_tensors(folder)


@pytest.mark.parametrize("family", FAMILIES)
def test_parameters_are_those_of_the_modules(tmp_path: Path, family: str) -> None:
    spec, tensors = tiny(tmp_path, family)
    sources = weight_sources(spec)
    wanted: dict[str, tuple[int, ...]] = {}
    for module, layer in ((Embed(spec), None), (Block(spec), 0), (Block(spec), 1), (Head(spec), None)):
        wanted |= {weight_name(spec, name, layer): tuple(p.shape) for name, p in module.named_parameters()}
    assert {name: source.shape for name, source in sources.items()} == wanted
    assert ("head" in sources) is not spec.tie_word_embeddings
    loaded = dict(load(spec, tensors))
    assert list(loaded) == list(sources)
    assert {name: tuple(tensor.shape) for name, tensor in loaded.items()} == wanted


def test_fused_parameters_hold_their_parts_in_order(tmp_path: Path) -> None:
    spec, tensors = tiny(tmp_path, "qwen2")
    loaded, layer = dict(load(spec, tensors)), "model.layers.1."
    for kind, name in (("weight", "layers.1.qkv"), ("bias", "layers.1.qkv_bias")):
        parts = [tensors.read(f"{layer}self_attn.{p}_proj.{kind}") for p in "qkv"]
        assert torch.equal(loaded[name], torch.cat(parts))
    gate, up = (tensors.read(f"{layer}mlp.{p}_proj.weight") for p in ("gate", "up"))
    assert torch.equal(loaded["layers.1.gate_up"], torch.cat((gate, up)))


def test_tensors_are_read_one_parameter_at_a_time(tmp_path: Path) -> None:
    spec, tensors = tiny(tmp_path)
    read: list[str] = []
    whole = tensors.read

    def counted(name: str) -> Tensor:
        read.append(name)
        return whole(name)

    tensors.read = counted  # type: ignore[method-assign]
    parameters = load(spec, tensors)
    assert read == []
    next(parameters)
    assert read == [EMBEDDING]


def test_missing_tensors_are_named(tmp_path: Path) -> None:
    spec, tensors = tiny(tmp_path)
    for name in ("model.layers.1.self_attn.k_proj.weight", "model.norm.weight", HEAD):
        rest = {n: t for n, t in tensors.tensors.items() if n != name}
        _refused(spec, rest, name, "tiny")
    _refused(spec, {}, EMBEDDING, "and 18 more")


def test_wrong_shapes_name_tensor_wanted_and_found(tmp_path: Path) -> None:
    spec, tensors = tiny(tmp_path)
    name = "model.layers.0.mlp.down_proj.weight"
    _refused(spec, tensors.tensors | {name: torch.zeros(48, 111)}, name, "(48, 111)", "(48, 112)")
    _refused(spec, tensors.tensors | {name: torch.zeros(48 * 112)}, name, "(5376,)", "(48, 112)")


def test_unknown_tensors_are_named_but_recomputed_buffers_ignored(tmp_path: Path) -> None:
    spec, tensors = tiny(tmp_path)
    buffer = {"model.layers.0.self_attn.rotary_emb.inv_freq": torch.zeros(8)}
    assert len(dict(load(spec, Tensors(tensors.tensors | buffer)))) == len(weight_sources(spec))
    name = "model.layers.0.mlp.down_proj.bias"
    _refused(spec, tensors.tensors | {name: torch.zeros(48)}, name, "llama")


def test_a_tied_head_may_be_stored_twice_if_equal(tmp_path: Path) -> None:
    spec, tensors = tiny(tmp_path, "smollm2")
    assert HEAD not in tensors.tensors
    equal = tensors.read(EMBEDDING).clone()
    assert "head" not in dict(load(spec, Tensors(tensors.tensors | {HEAD: equal})))
    _refused(spec, tensors.tensors | {HEAD: equal + 1}, HEAD, EMBEDDING, "tie_word_embeddings")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf"), 3.4e38])
def test_tensors_that_are_not_finite_are_named_as_they_are_read(
    tmp_path: Path, value: float, dtype: torch.dtype
) -> None:
    spec, tensors = tiny(tmp_path)
    for name in ("model.layers.1.post_attention_layernorm.weight", "model.layers.0.self_attn.k_proj.weight"):
        wrong = tensors.read(name).to(dtype)
        wrong.view(-1)[[3, 7]] = value
        with pytest.raises(CheckpointError) as caught:
            dict(load(spec, Tensors(tensors.tensors | {name: wrong})))
        assert str(caught.value) == (
            f"tiny: {name} has 2 values of {wrong.numel()} that are NaN, infinite or too large for bf16; "
            "fetch it again, or ask who made it"
        )


def _refused(spec: LlamaSpec, tensors: dict[str, Tensor], *words: str) -> None:
    with pytest.raises(CheckpointError) as caught:
        load(spec, Tensors(tensors))
    assert "\n" not in str(caught.value)
    assert all(word in str(caught.value) for word in words)
