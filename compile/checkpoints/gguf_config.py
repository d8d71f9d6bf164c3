"""The header of a GGUF file as a Hugging Face config of LlamaForCausalLM.

Knows nothing of tensors' values. A header field that could change the arithmetic and is not known here is refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from tandem.compile.checkpoints.base import missing_tensor
from tandem.errors import CheckpointError

_ORIGINAL = "use the original safetensors instead"
_SIZES = {
    "hidden_size": "embedding_length",
    "intermediate_size": "feed_forward_length",
    "num_hidden_layers": "block_count",
    "num_attention_heads": "attention.head_count",
    "max_position_embeddings": "context_length",
}
_KNOWN = {
    *_SIZES.values(),
    "attention.head_count_kv",
    "attention.key_length",
    "attention.value_length",
    "attention.layer_norm_rms_epsilon",
    "rope.dimension_count",
    "rope.freq_base",
    "rope.scale_linear",
    "rope.scaling.type",
    "rope.scaling.factor",
    "rope.scaling.original_context_length",
    "rope.scaling.finetuned",
    "tensor_data_layout",
    "vocab_size",
}
_NEUTRAL = {"expert_count": 0, "expert_used_count": 0, "attention.causal": True}  # known with this value only


@dataclass(frozen=True, slots=True)
class GgufHeader:
    """Header fields by full name, and the file's name for messages."""

    fields: Mapping[str, Any]
    origin: str

    def check_architecture(self) -> None:
        """CheckpointError unless this is a dense llama whose every arithmetic field is known here."""
        architecture = self.fields.get("general.architecture")
        if architecture != "llama":
            raise CheckpointError(f"{self.origin}: architecture {architecture!r}, wanted 'llama': {_ORIGINAL}")
        if (parts := self.fields.get("split.count", 1)) not in (0, 1):
            raise CheckpointError(f"{self.origin}: one of {parts} parts: join them with llama-gguf-split --merge")
        for name, value in self.fields.items():
            key = name.removeprefix("llama.")
            if key != name and key not in _KNOWN and _NEUTRAL.get(key) != value:
                raise CheckpointError(f"{self.origin}: header field {name} = {value!r} is not supported: {_ORIGINAL}")

    def integer(self, name: str, default: int | None = None) -> int:
        """A positive whole number by its name after `llama.`; without a default, the field must be there."""
        value = self.fields.get(f"llama.{name}", default)
        if not isinstance(value, int) or value < 1:
            raise self._wanted(name, "a positive whole number", value)
        return value

    def real(self, name: str, default: float | None = None) -> float:
        """A positive number as the shortest decimal that is the same in float32: 1e-05, not 9.999999747e-06."""
        value = self.fields.get(f"llama.{name}", default)
        if not isinstance(value, float) or not 0 < value < np.inf:
            raise self._wanted(name, "a positive number", value)
        return float(str(np.float32(value)))

    def _wanted(self, name: str, kind: str, value: Any) -> CheckpointError:
        found = "is missing" if value is None else f"is {value!r}"
        return CheckpointError(f"{self.origin}: header field llama.{name} {found}, wanted {kind}: fetch the file again")


def read_config(
    header: GgufHeader, shapes: Mapping[str, tuple[int, ...]], factors: np.ndarray | None
) -> dict[str, Any]:
    """Config fields from the header; `shapes` by Hugging Face name, `factors` the llama3 rope factors if stored."""
    config = {field: header.integer(name) for field, name in _SIZES.items()}
    heads = config["num_attention_heads"]
    kv_heads, head_dim = _kv_heads(header, heads), _head_dim(header, config["hidden_size"] // heads)
    theta = header.real("rope.freq_base", 10000.0)
    _check_shapes(header, shapes, heads, kv_heads, head_dim)
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_act": "silu",
        "dtype": "float32",
        **config,
        "num_key_value_heads": kv_heads,
        "head_dim": head_dim,
        "rms_norm_eps": header.real("attention.layer_norm_rms_epsilon"),
        "rope_theta": theta,
        "rope_scaling": _rope_scaling(header, head_dim, theta, factors),
        "vocab_size": shapes["model.embed_tokens.weight"][0],
        "tie_word_embeddings": "lm_head.weight" not in shapes,
        "attention_bias": any(name.endswith("q_proj.bias") for name in shapes),
        "mlp_bias": any(name.endswith("up_proj.bias") for name in shapes),
        "bos_token_id": header.fields.get("tokenizer.ggml.bos_token_id"),
        "eos_token_id": header.fields.get("tokenizer.ggml.eos_token_id"),
    }


def _kv_heads(header: GgufHeader, heads: int) -> int:
    """One number, or the same number once per layer."""
    name = "attention.head_count_kv"
    value = header.fields.get(f"llama.{name}")
    if not isinstance(value, list):
        return header.integer(name, heads)
    if len(set(value)) != 1 or not isinstance(value[0], int) or value[0] < 1:
        raise CheckpointError(f"{header.origin}: llama.{name} is not the same in every layer ({value}): {_ORIGINAL}")
    return int(value[0])


def _head_dim(header: GgufHeader, default: int) -> int:
    head_dim = header.integer("attention.key_length", default)
    for name in ("attention.value_length", "rope.dimension_count"):
        if (found := header.integer(name, head_dim)) != head_dim or head_dim % 2:
            raise CheckpointError(
                f"{header.origin}: llama.{name} is {found}, wanted the head size {head_dim}, even: {_ORIGINAL}"
            )
    return head_dim


def _check_shapes(
    header: GgufHeader, shapes: Mapping[str, tuple[int, ...]], heads: int, kv_heads: int, head_dim: int
) -> None:
    """Rows of q and k must be whole heads, or they cannot be put into order; every token must have an embedding."""
    if (embedding := "model.embed_tokens.weight") not in shapes:
        raise missing_tensor(header.origin, embedding)
    num_tokens = len(header.fields.get("tokenizer.ggml.tokens") or ())
    if num_tokens > shapes[embedding][0]:
        raise CheckpointError(
            f"{header.origin}: {num_tokens} tokens but {shapes[embedding][0]} rows of token_embd: fetch the file again"
        )
    for name, shape in shapes.items():
        count = heads if ".q_proj." in name else kv_heads if ".k_proj." in name else None
        if count is not None and shape[0] != count * head_dim:
            raise CheckpointError(
                f"{header.origin}: tensor {name} has {shape[0]} rows, wanted {count} heads of {head_dim}: "
                "fetch the file again"
            )


def _rope_scaling(header: GgufHeader, head_dim: int, theta: float, factors: np.ndarray | None) -> dict[str, Any] | None:
    older = header.real("rope.scale_linear", 1.0)  # how linear scaling was written before it had a type
    kind = header.fields.get("llama.rope.scaling.type", "linear")
    factor = header.real("rope.scaling.factor", older)
    if factors is not None:
        if factor != 1.0:
            raise CheckpointError(f"{header.origin}: holds rope_freqs beside rope scaling by {factor}: {_ORIGINAL}")
        return _llama3_scaling(header, head_dim, theta, factors)
    match kind:
        case "none":
            return None
        case "linear":
            return {"rope_type": "linear", "factor": factor} if factor != 1.0 else None
        case "yarn":
            original = header.integer("rope.scaling.original_context_length")
            return {"rope_type": "yarn", "factor": factor, "original_max_position_embeddings": original}
    raise CheckpointError(f"{header.origin}: rope scaling {kind!r}, wanted none, linear or yarn: {_ORIGINAL}")


def _llama3_scaling(header: GgufHeader, head_dim: int, theta: float, stored: np.ndarray) -> dict[str, Any] | None:
    """Find the llama3 parameters that give the stored factors.

    The file keeps what each frequency is divided by, not the parameters. All published llama3 models use low 1 and
    high 4; the factor is the largest stored, and the original context is the power of two that reproduces the rest.
    """
    if np.all(stored == 1.0):
        return None
    factor = float(stored.max())
    for original in (8192, *(2**power for power in range(6, 21))):  # the published value first
        if stored.shape == (head_dim // 2,) and np.allclose(
            llama3_factors(head_dim, theta, factor, original), stored, rtol=1e-5, atol=0
        ):
            return {
                "rope_type": "llama3",
                "factor": factor,
                "low_freq_factor": 1.0,
                "high_freq_factor": 4.0,
                "original_max_position_embeddings": original,
            }
    raise CheckpointError(f"{header.origin}: rope_freqs.weight is not llama3 rope scaling: {_ORIGINAL}")


def llama3_factors(head_dim: int, theta: float, factor: float, original: int) -> np.ndarray:
    """What llama3 rope with low 1 and high 4 divides each of the head_dim / 2 frequencies by, float64."""
    turns = original * theta ** (-np.arange(0, head_dim, 2) / head_dim) / (2 * np.pi)  # turns within the context
    smooth = np.clip((turns - 1.0) / (4.0 - 1.0), 0.0, 1.0)
    return 1.0 / ((1.0 - smooth) / factor + smooth)
