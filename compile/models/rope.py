"""Rotary positions: from config fields to cos and sin tables, in float64 until the last rounding.

Rope types `default`, `linear`, `llama3` and `yarn`, as Transformers defines them; numpy only.
"""

from __future__ import annotations

import math

import numpy as np

from tandem.compile.models.config import Config, contradiction, unsupported
from tandem.compile.models.spec import RopeSpec

_COMMON = ("rope_type", "type", "rope_theta", "partial_rotary_factor", "finetuned")
_NUMBERS = ("low_freq_factor", "high_freq_factor", "attention_factor", "beta_fast", "beta_slow")
_SCALES = ("mscale", "mscale_all_dim")
_KNOWN = (*_COMMON, *_NUMBERS, *_SCALES, "factor", "original_max_position_embeddings", "truncate")
ROPE_TYPES = ("default", "linear", "llama3", "yarn")


def rope_section(config: Config) -> str:
    """Which field holds the rope, `rope_parameters` or `rope_scaling`. CheckpointError where they contradict."""
    new, old = (config.section(name).fields for name in ("rope_parameters", "rope_scaling"))
    if new and old and new != old:
        raise contradiction(f"rope_parameters = {new!r}", f"rope_scaling = {old!r}")
    return "rope_parameters" if "rope_parameters" in config else "rope_scaling"


def resolve_rope(config: Config, max_position_embeddings: int) -> RopeSpec:
    """Read `rope_parameters` (Transformers 5) or `rope_theta` and `rope_scaling`, with `rope_type` or the older `type`.

    CompileError names an unknown rope type or field, CheckpointError a missing or malformed one.
    """
    section = config.section(rope_section(config))
    rope_type = section.get("rope_type", section.get("type", "default"))
    if rope_type not in ROPE_TYPES:
        raise unsupported(section.full_name("rope_type"), rope_type, ", ".join(ROPE_TYPES))
    section.known(_KNOWN)
    config.only("partial_rotary_factor", 1.0)
    section.only("partial_rotary_factor", 1.0)
    theta = section.number("rope_theta", config.number("rope_theta", 10000.0))
    if rope_type == "default":
        return RopeSpec("default", theta)
    if rope_type == "linear":
        return RopeSpec("linear", theta, section.number("factor"))
    # As in Transformers, a field of the config itself goes before the one of the section.
    origin = config if "original_max_position_embeddings" in config else section
    original = origin.size("original_max_position_embeddings", max_position_embeddings)
    if rope_type == "llama3":
        low, high = section.number("low_freq_factor"), section.number("high_freq_factor")
        return RopeSpec("llama3", theta, section.number("factor"), original, low, high)
    return RopeSpec(
        "yarn",
        theta,
        section.number("factor", max_position_embeddings / original),
        original,
        attention_factor=section.optional_number("attention_factor"),
        beta_fast=section.get("beta_fast") and section.number("beta_fast"),
        beta_slow=section.get("beta_slow") and section.number("beta_slow"),
        mscale=section.get("mscale") and section.number("mscale"),
        mscale_all_dim=section.get("mscale_all_dim") and section.number("mscale_all_dim"),
        truncate=section.flag("truncate", True),
    )


def inverse_frequencies(rope: RopeSpec, head_dim: int) -> tuple[np.ndarray, float]:
    """Radians per position, float64 [head_dim / 2], and the factor on cos and sin."""
    plain = rope.rope_theta ** -(np.arange(0, head_dim, 2, dtype=np.float64) / head_dim)
    if rope.rope_type == "linear":
        return plain / _given(rope.factor), 1.0
    if rope.rope_type == "llama3":
        return _llama3(rope, plain), 1.0
    if rope.rope_type == "yarn":
        return _yarn(rope, plain, head_dim), _yarn_attention_factor(rope)
    return plain, 1.0


def rope_tables(rope: RopeSpec, head_dim: int, num_positions: int) -> tuple[np.ndarray, np.ndarray]:
    """cos and sin of positions 0..num_positions - 1, float32 [num_positions, head_dim / 2]."""
    frequencies, factor = inverse_frequencies(rope, head_dim)
    angles = np.arange(num_positions, dtype=np.float64)[:, None] * frequencies
    return (np.cos(angles) * factor).astype(np.float32), (np.sin(angles) * factor).astype(np.float32)


def _llama3(rope: RopeSpec, plain: np.ndarray) -> np.ndarray:
    """Slow frequencies are divided by the factor, fast ones kept, those between blended."""
    low, high = _given(rope.low_freq_factor), _given(rope.high_freq_factor)
    turns = _given(rope.original_max_position_embeddings) * plain / (2 * math.pi)  # within the original context
    # The blend is 0 where turns <= low and 1 where turns >= high.
    kept = np.clip((turns - low) / (high - low), 0.0, 1.0)
    return plain * kept + plain / _given(rope.factor) * (1 - kept)


def _yarn(rope: RopeSpec, plain: np.ndarray, head_dim: int) -> np.ndarray:
    """Dimensions that turn often in the original context are kept, those that hardly turn divided by the factor."""
    original = _given(rope.original_max_position_embeddings)

    def dimension(turns: float) -> float:
        return head_dim * math.log(original / (turns * 2 * math.pi)) / (2 * math.log(rope.rope_theta))

    first, last = dimension(rope.beta_fast or 32.0), dimension(rope.beta_slow or 1.0)
    if rope.truncate:
        first, last = math.floor(first), math.ceil(last)
    first, last = max(first, 0), min(last, head_dim - 1)
    width = last - first or 0.001
    divided = np.clip((np.arange(head_dim // 2) - first) / width, 0.0, 1.0)
    return plain / _given(rope.factor) * divided + plain * (1 - divided)


def _yarn_attention_factor(rope: RopeSpec) -> float:
    if rope.attention_factor is not None:
        return rope.attention_factor
    factor = _given(rope.factor)
    if rope.mscale and rope.mscale_all_dim:
        return _magnitude(factor, rope.mscale) / _magnitude(factor, rope.mscale_all_dim)
    return _magnitude(factor, 1.0)


def _magnitude(factor: float, mscale: float) -> float:
    return 0.1 * mscale * math.log(factor) + 1.0 if factor > 1 else 1.0


def _given(value: float | None) -> float:
    assert value is not None  # resolve_rope fills what the rope type needs
    return value
