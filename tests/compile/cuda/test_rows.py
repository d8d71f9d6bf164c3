"""Weights row by row: the shapes of the checkpoint, matrices rounded to nearest, vectors whole."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file

from tandem.artifacts.weights import MappedWeights
from tandem.compile.checkpoints.open import open_checkpoint
from tandem.compile.cuda import rows
from tandem.compile.models.families import resolve
from tandem.compile.profile import Format, find_profile
from tandem.compile.store import weight_bytes, write_weights
from tandem.errors import UsageError
from tests.tiny import make_checkpoint

SIZES: dict[Format, int] = {"fp32": 4, "bf16": 2}


@given(st.lists(st.integers(1, 40), min_size=2, max_size=2), st.sampled_from(list(SIZES)))
def test_a_matrix_keeps_its_shape_and_order(shape: list[int], form: Format):
    weight = torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)))
    packed = rows.pack(weight, form)
    assert rows.stored_shape(tuple(shape), form) == tuple(shape) == packed.shape
    assert packed.nbytes == rows.stored_bytes(tuple(shape), form) == shape[0] * shape[1] * SIZES[form]
    assert packed.flags.c_contiguous
    bits = weight.numpy().view(np.uint32)
    if form == "bf16":  # to nearest, ties to even, by hand
        bits = ((bits.astype(np.uint64) + 0x7FFF + (bits >> 16 & 1)) >> 16).astype(np.uint16)
    assert (packed.view(bits.dtype) == bits).all()


def test_strides_of_the_checkpoint_do_not_matter():
    weight = torch.randn(5, 7)
    assert (rows.pack(weight.T, "fp32") == weight.numpy().T).all()
    assert (rows.pack(weight.T, "bf16") == rows.pack(weight.T.contiguous(), "bf16")).all()
    assert all(rows.pack(weight.T, form).flags.c_contiguous for form in SIZES)


def test_a_vector_stays_fp32():
    vector = torch.randn(33).to(torch.bfloat16)
    packed = rows.pack(vector, find_profile("bf16").format("input_norm", (33,)))
    assert packed.dtype == np.float32 and (packed == vector.float().numpy()).all()


@pytest.mark.parametrize("form", ["int8", "int4"])
def test_formats_without_kernels_are_refused(form: Format):
    for refused in (rows.require, lambda f: rows.stored_shape((32, 32), f), lambda f: rows.stored_bytes((32, 32), f)):
        with pytest.raises(UsageError, match=f"{form} has no CUDA kernels in this build: use --profile bf16 or fp32"):
            refused(form)


@pytest.mark.parametrize("profile", ["bf16", "fp32"])
def test_a_model_lies_as_its_checkpoint_does(tmp_path: Path, profile: str):
    folder = make_checkpoint(tmp_path / "c", "qwen2")
    checkpoint, chosen = open_checkpoint(str(folder)), find_profile(profile)
    spec = resolve(checkpoint.config)
    write_weights(spec, chosen, checkpoint, tmp_path / "w", layout=rows, context_length=128)
    weights, given = MappedWeights(tmp_path / "w"), load_file(folder / "model.safetensors")
    kind = torch.bfloat16 if profile == "bf16" else torch.float32

    def held(name: str, dtype: torch.dtype) -> torch.Tensor:
        span = weights.spans[name]
        begin = weights.offset(name)
        assert begin % 64 == 0
        return torch.from_numpy(np.array(weights.data[begin : begin + span.nbytes])).view(dtype)

    layer = "model.layers.1"
    fused = torch.cat([given[f"{layer}.self_attn.{name}_proj.weight"] for name in "qkv"])
    assert torch.equal(held("layers.1.qkv", kind).view(fused.shape), fused.to(kind))
    bias = torch.cat([given[f"{layer}.self_attn.{name}_proj.bias"] for name in "qkv"])
    assert torch.equal(held("layers.1.qkv_bias", torch.float32), bias.float())
    down = given[f"{layer}.mlp.down_proj.weight"]
    assert torch.equal(held("layers.1.down", kind).view(down.shape), down.to(kind))
    sizes = {name: span.nbytes for name, span in weights.spans.items() if not name.startswith(("pad.", "rope."))}
    assert sum(sizes.values()) == weight_bytes(spec, chosen, rows)
