"""Which architectures are known, and how the config of each becomes a spec. A new family is a line in the table."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from tandem.compile.models.config import Config, contradiction, unsupported
from tandem.compile.models.qwen3_5_config import plain_rope, resolve_hybrid
from tandem.compile.models.rope import resolve_rope
from tandem.compile.models.spec import LlamaSpec
from tandem.errors import CheckpointError

MAX_HEAD_DIM = 256
"""Attention holds a whole head at once."""
MAX_LAYERS = 1024
"""More is a slip of the pen; a plan would be drawn for every one."""


@dataclass(frozen=True, slots=True)
class Family:
    """An architecture as Hugging Face names it; `resolve` turns its config into a spec.

    Of an architecture that wraps a text model, `section` is the text model's part of the config.
    """

    name: str  # also the `model_type`
    architecture: str
    resolve: Callable[[Config], LlamaSpec]
    section: str = ""


def resolve(config: Mapping[str, Any]) -> LlamaSpec:
    """The spec of a checkpoint's config.json.

    CompileError for an architecture, rope type or option that is not supported, CheckpointError for a field
    that is missing or malformed.
    """
    fields = Config(config)
    family = _family(fields)
    fields.only("quantization_config")
    if family.section:
        fields = _text_section(fields, family.section)
    fields.only("hidden_act", "silu")
    fields.only("mlp_bias", False)
    fields.only("rope_interleaved", False)
    return family.resolve(fields)


def _family(config: Config) -> Family:
    architectures = config.get("architectures", [])
    if not isinstance(architectures, list):
        raise CheckpointError(f"the checkpoint's config has architectures = {architectures!r}; wanted a list")
    if architectures:
        name, found = "architectures", architectures[0]
        family = next((f for f in FAMILIES if f.architecture == found), None)
    else:
        name, found = "model_type", config.get("model_type")
        family = next((f for f in FAMILIES if f.name == found), None)
    if family is None:
        raise unsupported(name, found, ", ".join(f.architecture for f in FAMILIES))
    return family


def _text_section(config: Config, name: str) -> Config:
    """The text model's own config. Whether its head is tied, the whole model's config says."""
    if name not in config:
        raise CheckpointError(f"the checkpoint's config lacks {name}; is it complete?")
    section, tied = config.section(name), "tie_word_embeddings"
    return Config({**section.fields, tied: config.get(tied, section.get(tied))}, name)


def _spec(
    config: Config, family: str, *, head_dim: int | None = None, qkv_bias: bool, output_bias: bool, head_norms: bool
) -> LlamaSpec:
    heads = config.size("num_attention_heads")
    key_value_heads = config.size("num_key_value_heads", heads)
    hidden_size = config.size("hidden_size")
    head_dim = config.size("head_dim", head_dim or hidden_size // heads)
    context = config.size("max_position_embeddings")
    layers = config.size("num_hidden_layers")
    if layers > MAX_LAYERS:
        raise unsupported("num_hidden_layers", layers, f"up to {MAX_LAYERS}")
    if heads % key_value_heads:
        second = f"num_key_value_heads = {key_value_heads}"
        raise contradiction(f"num_attention_heads = {heads}", second, "of which it is no multiple")
    if head_dim % 2 or head_dim > MAX_HEAD_DIM:
        raise unsupported("head_dim", head_dim, f"even numbers up to {MAX_HEAD_DIM}")
    return LlamaSpec(
        family=family,
        hidden_size=hidden_size,
        intermediate_size=config.size("intermediate_size"),
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=key_value_heads,
        head_dim=head_dim,
        vocab_size=config.size("vocab_size"),
        rms_norm_eps=config.number("rms_norm_eps", 1e-6),
        max_position_embeddings=context,
        tie_word_embeddings=config.flag("tie_word_embeddings"),
        attention_bias=qkv_bias,
        output_bias=output_bias,
        head_norms=head_norms,
        rope=resolve_rope(config, context),
    )


def _llama(config: Config) -> LlamaSpec:
    bias = config.flag("attention_bias")
    return _spec(config, "llama", qkv_bias=bias, output_bias=bias, head_norms=False)


def _mistral(config: Config) -> LlamaSpec:
    # A config without the field means Transformers' default, a window of 4,096.
    window = config.fields.get("sliding_window", 4096)
    if window is not None and window < config.size("max_position_embeddings"):
        raise unsupported("sliding_window", window, "null, or at least max_position_embeddings")
    return _spec(config, "mistral", qkv_bias=False, output_bias=False, head_norms=False)


def _qwen2(config: Config) -> LlamaSpec:
    _refuse_window(config)
    return _spec(config, "qwen2", qkv_bias=True, output_bias=False, head_norms=False)


def _qwen3(config: Config) -> LlamaSpec:
    _refuse_window(config)
    bias = config.flag("attention_bias")
    return _spec(config, "qwen3", head_dim=128, qkv_bias=bias, output_bias=bias, head_norms=True)


def _qwen3_5(config: Config) -> LlamaSpec:
    bias = config.flag("attention_bias")
    plain, factor = plain_rope(config)
    dense = _spec(plain, "qwen3_5", head_dim=256, qkv_bias=bias, output_bias=bias, head_norms=True)
    return resolve_hybrid(config, dense, factor)


def _refuse_window(config: Config) -> None:
    config.only("use_sliding_window", False)
    for layer_type in config.get("layer_types", []):
        if layer_type != "full_attention":
            raise unsupported("layer_types", layer_type, "full_attention")


FAMILIES = (
    Family("llama", "LlamaForCausalLM", _llama),
    Family("mistral", "MistralForCausalLM", _mistral),
    Family("qwen2", "Qwen2ForCausalLM", _qwen2),
    Family("qwen3", "Qwen3ForCausalLM", _qwen3),
    Family("qwen3_5_text", "Qwen3_5ForCausalLM", _qwen3_5),
    Family("qwen3_5", "Qwen3_5ForConditionalGeneration", _qwen3_5, section="text_config"),
)
