"""What a qwen3_5 config says beyond a dense decoder: which layers are recurrent, and how their heads are laid out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from tandem.compile.models.config import Config, contradiction, unsupported
from tandem.compile.models.rope import rope_section
from tandem.compile.models.spec import FULL_ATTENTION, LINEAR_ATTENTION, HybridSpec, LlamaSpec
from tandem.errors import CheckpointError

LAYER_TYPES = (FULL_ATTENTION, LINEAR_ATTENTION)
MAX_LINEAR_HEAD_DIM = 256
"""The recurrence holds a whole column of a head's state at once."""
MAX_CONV_WIDTH = 8
INTERVAL = "full_attention_interval"
PARTIAL = "partial_rotary_factor"
SECTIONS = "mrope_section"
MULTIMODAL = (SECTIONS, "mrope_interleaved")
"""Fields that say how the axes of images share the angles; text has equal positions on all of them."""


def plain_rope(config: Config) -> tuple[Config, float]:
    """The config with its rope as a text model's own, and the share of a head's dimensions that is turned."""
    name = rope_section(config)
    section = config.section(name)
    for field in (PARTIAL, "rope_theta"):
        inside, outside = section.optional_number(field), config.optional_number(field)
        if inside is not None and outside is not None and inside != outside:
            raise contradiction(f"{field} = {outside:g}", f"{section.full_name(field)} = {inside:g}")
    factor = section.number(PARTIAL, config.number(PARTIAL, 0.25))
    rope = {field: value for field, value in section.fields.items() if field not in (PARTIAL, *MULTIMODAL)}
    moved = (PARTIAL, "rope_scaling")
    rest: Mapping[str, Any] = {field: value for field, value in config.fields.items() if field not in moved}
    return Config({**rest, name: rope or None}, config.path), factor


def resolve_hybrid(config: Config, dense: LlamaSpec, partial_rotary_factor: float) -> HybridSpec:
    """`dense` with what is recurrent. CompileError for what is not supported, CheckpointError for what is malformed."""
    # The state accumulates every token of the text, so it is kept in fp32 whatever the weights are.
    config.only("mamba_ssm_dtype", "float32")
    config.only("attn_output_gate", True)
    spec = HybridSpec(
        **{field.name: getattr(dense, field.name) for field in fields(dense)},
        layer_types=_layer_types(config, dense.num_hidden_layers),
        partial_rotary_factor=partial_rotary_factor,
        linear_num_key_heads=config.size("linear_num_key_heads", 16),
        linear_num_value_heads=config.size("linear_num_value_heads", 32),
        linear_key_head_dim=_head_dim(config, "linear_key_head_dim"),
        linear_value_head_dim=_head_dim(config, "linear_value_head_dim"),
        linear_conv_kernel_dim=config.size("linear_conv_kernel_dim", 4),
    )
    if spec.linear_num_value_heads % spec.linear_num_key_heads:
        raise contradiction(
            f"linear_num_value_heads = {spec.linear_num_value_heads}",
            f"linear_num_key_heads = {spec.linear_num_key_heads}",
            "of which it is no multiple",
        )
    if not 2 <= spec.linear_conv_kernel_dim <= MAX_CONV_WIDTH:
        raise unsupported("linear_conv_kernel_dim", spec.linear_conv_kernel_dim, f"2 to {MAX_CONV_WIDTH}")
    if partial_rotary_factor > 1 or spec.rotary_dim < 2 or spec.rotary_dim % 2:
        raise unsupported(
            PARTIAL,
            partial_rotary_factor,
            f"shares of head_dim = {spec.head_dim} that are an even number of dimensions, at least 2",
        )
    _check_sections(config, spec)
    return spec


def _check_sections(config: Config, spec: HybridSpec) -> None:
    """The axes of images share what is turned of a head; of text all of it turns alike."""
    rope = config.section(rope_section(config))
    shares = rope.get(SECTIONS, [spec.rotary_dim // 2])
    if not isinstance(shares, list) or not all(isinstance(share, int) for share in shares):
        raise CheckpointError(
            f"the checkpoint's config has {rope.full_name(SECTIONS)} = {shares!r}; wanted a list of whole numbers"
        )
    if 2 * sum(shares) != spec.rotary_dim:
        share = f"{PARTIAL} = {spec.partial_rotary_factor:g} of head_dim = {spec.head_dim}"
        why = f"{sum(shares)} angles where {spec.rotary_dim // 2} turn"
        raise contradiction(f"{rope.full_name(SECTIONS)} = {shares}", share, why)


def _head_dim(config: Config, name: str) -> int:
    size = config.size(name, 128)
    if size > MAX_LINEAR_HEAD_DIM:
        raise unsupported(name, size, f"up to {MAX_LINEAR_HEAD_DIM}")
    return size


def _layer_types(config: Config, num_layers: int) -> tuple[str, ...]:
    """One type per layer, as listed, or full attention in every `full_attention_interval`th layer."""
    interval = config.size(INTERVAL, 4)
    regular = [LAYER_TYPES[(layer + 1) % interval > 0] for layer in range(num_layers)]
    listed = config.get("layer_types", regular)
    if not isinstance(listed, list) or len(listed) != num_layers:
        found = f"{len(listed)} layer_types" if isinstance(listed, list) else f"layer_types = {listed!r}"
        raise CheckpointError(f"the checkpoint's config has {found}; wanted one for each of {num_layers} layers")
    for layer_type in listed:
        if layer_type not in LAYER_TYPES:
            raise unsupported("layer_types", layer_type, " and ".join(LAYER_TYPES))
    if missing := [layer_type for layer_type in LAYER_TYPES if layer_type not in listed]:
        raise unsupported("layer_types", f"no {missing[0]}", "at least one layer of each type")
    if INTERVAL in config and listed != regular:
        layer = next(layer for layer in range(num_layers) if listed[layer] != regular[layer])
        first, second = f"layer_types[{layer}] = {listed[layer]!r}", f"{INTERVAL} = {interval}"
        raise contradiction(first, second, f"which makes it {regular[layer]!r}")
    return tuple(listed)
