"""Rope tables against Transformers' functions, against angles computed with more digits, and both config styles."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from tandem.compile.models.config import Config
from tandem.compile.models.rope import ROPE_TYPES, inverse_frequencies, resolve_rope, rope_tables
from tandem.compile.models.spec import RopeSpec
from tandem.errors import CheckpointError, CompileError

CONTEXT, HEAD_DIM = 4096, 64
LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 1024}
ROPES: dict[str, dict[str, Any]] = {
    "default": {"rope_type": "default", "rope_theta": 10000.0},
    "large-theta": {"rope_type": "default", "rope_theta": 1e6},
    "linear": {"rope_type": "linear", "rope_theta": 1e4, "factor": 2.5},
    "llama3": LLAMA3 | {"rope_theta": 5e5, "original_max_position_embeddings": 1024},
    "llama3-of-this-context": LLAMA3 | {"rope_theta": 5e5},
    "llama3-narrow": LLAMA3 | {"rope_theta": 1e4, "factor": 32.0, "low_freq_factor": 2.0, "high_freq_factor": 3.0},
    "yarn": YARN | {"rope_theta": 1e4},
    "yarn-of-this-context": {"rope_type": "yarn", "factor": 2.0, "rope_theta": 1e6},
    "yarn-betas": YARN | {"rope_theta": 1e6, "beta_fast": 16.0, "beta_slow": 2.0},
    "yarn-equal-ends": YARN | {"rope_theta": 1e4, "beta_fast": 1e-9, "beta_slow": 1e-9},
    "yarn-untruncated": YARN | {"rope_theta": 1.5e5, "truncate": False},
    "yarn-attention-factor": YARN | {"rope_theta": 1e4, "attention_factor": 0.75},
    "yarn-mscale": YARN | {"rope_theta": 1e4, "mscale": 1.0, "mscale_all_dim": 0.707},
    "yarn-one-mscale": YARN | {"rope_theta": 1e4, "mscale": 0.5},
    "yarn-factor-one": YARN | {"rope_theta": 1e4, "factor": 1.0},
}


def _theirs(rope: dict[str, Any]) -> tuple[torch.Tensor, float, torch.Tensor, torch.Tensor]:
    from transformers import LlamaConfig
    from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

    config = LlamaConfig(
        hidden_size=2 * HEAD_DIM, num_attention_heads=2, max_position_embeddings=CONTEXT, rope_parameters=dict(rope)
    )
    rotary = LlamaRotaryEmbedding(config)
    cos, sin = rotary(torch.zeros(1), torch.arange(CONTEXT)[None])
    half = HEAD_DIM // 2
    return rotary.inv_freq, float(rotary.attention_scaling), cos[0, :, :half], sin[0, :, :half]


@pytest.mark.parametrize("name", ROPES)
def test_frequencies_and_tables_are_those_of_transformers(name: str) -> None:
    rope = resolve_rope(Config({"rope_parameters": ROPES[name]}), CONTEXT)
    found, factor = inverse_frequencies(rope, HEAD_DIM)
    wanted, wanted_factor, cos, sin = _theirs(ROPES[name])
    np.testing.assert_allclose(found, wanted.numpy(), rtol=2e-6)
    assert factor == pytest.approx(wanted_factor, rel=1e-12)
    # Their angles are float32 products of float32 frequencies: off by some ulps of the largest angle.
    slack = CONTEXT * 2e-6 * max(1.0, factor)
    for ours, theirs in zip(rope_tables(rope, HEAD_DIM, CONTEXT), (cos, sin), strict=True):
        assert ours.dtype == np.float32
        np.testing.assert_allclose(ours, theirs.numpy(), atol=slack)
        np.testing.assert_allclose(ours[:8], theirs[:8].numpy(), atol=8 * 2e-6)


def test_every_rope_type_is_tested() -> None:
    assert {rope["rope_type"] for rope in ROPES.values()} == set(ROPE_TYPES)


def test_tables_are_rounded_once() -> None:
    rope = RopeSpec("default", 10000.0)
    cos, sin = rope_tables(rope, HEAD_DIM, 8192)
    exponent = -np.arange(0, HEAD_DIM, 2, dtype=np.longdouble) / HEAD_DIM
    angles = np.arange(8192, dtype=np.longdouble)[:, None] * np.longdouble(10000.0) ** exponent
    for found, wanted in ((cos, np.cos(angles)), (sin, np.sin(angles))):
        half_ulp = np.spacing(np.abs(wanted).astype(np.float32)) / 2
        assert (np.abs(found - wanted) <= half_ulp + 1e-11).all()


@pytest.mark.parametrize("name", ROPES)
def test_the_older_style_means_the_same(name: str) -> None:
    rope = dict(ROPES[name])
    theta = rope.pop("rope_theta")
    wanted = resolve_rope(Config({"rope_parameters": ROPES[name]}), CONTEXT)
    assert resolve_rope(Config({"rope_theta": theta, "rope_scaling": rope}), CONTEXT) == wanted
    rope["type"] = rope.pop("rope_type")
    assert resolve_rope(Config({"rope_theta": theta, "rope_scaling": rope}), CONTEXT) == wanted


def test_defaults() -> None:
    plain = RopeSpec("default", 10000.0)
    assert resolve_rope(Config({}), CONTEXT) == plain
    assert resolve_rope(Config({"rope_scaling": None, "rope_theta": 5e5}), CONTEXT) == RopeSpec("default", 5e5)
    assert resolve_rope(Config({"rope_parameters": {}}), CONTEXT) == plain
    yarn = resolve_rope(Config({"rope_scaling": {"type": "yarn", "original_max_position_embeddings": 512}}), CONTEXT)
    assert yarn.factor == CONTEXT / 512
    outside = Config({"original_max_position_embeddings": 2048, "rope_parameters": YARN})
    assert resolve_rope(outside, CONTEXT).original_max_position_embeddings == 2048


@pytest.mark.parametrize(
    ("config", "words"),
    (
        ({"rope_scaling": {"type": "dynamic", "factor": 2.0}}, ("rope_scaling.rope_type", "'dynamic'", "llama3, yarn")),
        (
            {"rope_parameters": {"rope_type": "longrope"}},
            ("rope_parameters.rope_type", "'longrope'", "default, linear"),
        ),
        ({"rope_parameters": {"rope_type": ["yarn"]}}, ("rope_parameters.rope_type", "yarn")),
        ({"rope_parameters": {"mrope_section": [1, 2]}}, ("rope_parameters.mrope_section", "[1, 2]")),
        ({"rope_parameters": {"full_attention": {"rope_theta": 1.0}}}, ("rope_parameters.full_attention",)),
        ({"rope_parameters": {"partial_rotary_factor": 0.5}}, ("rope_parameters.partial_rotary_factor", "0.5", "1.0")),
        ({"partial_rotary_factor": 0.25}, ("partial_rotary_factor", "0.25", "1.0")),
    ),
)
def test_what_is_not_supported_is_refused_by_name(config: dict[str, Any], words: tuple[str, ...]) -> None:
    with pytest.raises(CompileError) as caught:
        resolve_rope(Config(config), CONTEXT)
    assert all(word in str(caught.value) for word in words)


@pytest.mark.parametrize(
    ("config", "words"),
    (
        ({"rope_scaling": {"type": "linear"}}, ("rope_scaling.factor",)),
        ({"rope_scaling": {"type": "linear", "factor": "2"}}, ("rope_scaling.factor", "'2'")),
        ({"rope_scaling": {"type": "linear", "factor": 0}}, ("rope_scaling.factor", "= 0")),
        ({"rope_scaling": {"rope_type": "llama3", "factor": 8.0}}, ("rope_scaling.low_freq_factor",)),
        ({"rope_scaling": "yarn"}, ("rope_scaling", "a dictionary")),
        ({"rope_theta": float("nan")}, ("rope_theta", "nan")),
        ({"rope_theta": True}, ("rope_theta", "True")),
    ),
)
def test_what_is_malformed_is_named(config: dict[str, Any], words: tuple[str, ...]) -> None:
    with pytest.raises(CheckpointError) as caught:
        resolve_rope(Config(config), CONTEXT)
    assert all(word in str(caught.value) for word in words)
