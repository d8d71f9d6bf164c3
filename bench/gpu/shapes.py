"""The shapes that figures are taken at, as Hugging Face configs, and what a step of each must read and compute.

Knows nothing of frameworks and devices.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

BF16 = 2
"""Bytes of an element of weights and cache."""


@dataclass(frozen=True, slots=True)
class Shape:
    """Sizes of a dense decoder under the names of Hugging Face configs."""

    name: str
    num_hidden_layers: int
    hidden_size: int
    intermediate_size: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    vocab_size: int
    max_position_embeddings: int
    rope_theta: float
    rms_norm_eps: float
    tie_word_embeddings: bool

    @property
    def query_size(self) -> int:
        return self.num_attention_heads * self.head_dim

    @property
    def key_value_size(self) -> int:
        return self.num_key_value_heads * self.head_dim

    @property
    def attention_layers(self) -> int:
        """Layers that have a KV cache."""
        return self.num_hidden_layers

    @property
    def matrices(self) -> dict[str, tuple[int, int]]:
        """The fused matrices of one layer, [outputs, inputs]."""
        hidden, inner = self.hidden_size, self.intermediate_size
        return {
            "qkv": (self.query_size + 2 * self.key_value_size, hidden),
            "o": (hidden, self.query_size),
            "gate_up": (2 * inner, hidden),
            "down": (hidden, inner),
        }

    @property
    def layer_parameters(self) -> int:
        """Parameters of the matrices of all layers."""
        return self.num_hidden_layers * sum(rows * columns for rows, columns in self.matrices.values())

    @property
    def head_parameters(self) -> int:
        return self.vocab_size * self.hidden_size

    @property
    def step_bytes(self) -> int:
        """Bytes of weights that a step of one token reads: matrices and head in bf16, norms in fp32."""
        norms = (2 * self.num_hidden_layers + 1) * self.hidden_size
        return BF16 * (self.layer_parameters + self.head_parameters) + 4 * norms

    def kv_bytes(self, context: int) -> int:
        """Bytes of K and V of `context` tokens over all layers that keep them."""
        return 2 * BF16 * self.attention_layers * self.key_value_size * context

    def prefill_flops(self, tokens: int, start: int = 0) -> int:
        """Operations of a prefill of `tokens` behind `start` others, logits of the last alone.

        A multiply and an add count as two. Attention counts the pairs that causality lets through.
        """
        pairs = tokens * start + tokens * (tokens + 1) // 2
        attention = 4 * self.attention_layers * self.query_size * pairs
        return 2 * (self.layer_parameters * tokens + self.head_parameters) + attention

    def config(self) -> dict[str, Any]:
        """The config.json of a llama of this shape."""
        fields = ("num_hidden_layers", "hidden_size", "intermediate_size", "num_attention_heads", "num_key_value_heads")
        fields += ("head_dim", "vocab_size", "max_position_embeddings", "rms_norm_eps", "tie_word_embeddings")
        return {name: getattr(self, name) for name in fields} | {
            "architectures": ["LlamaForCausalLM"],
            "model_type": "llama",
            "hidden_act": "silu",
            "rope_theta": self.rope_theta,
            "torch_dtype": "bfloat16",
        }


@dataclass(frozen=True)  # a class with slots is made anew, and its methods' super() would be of the first
class HybridShape(Shape):
    """Of a hybrid: layers but every `full_attention_interval`th are Gated DeltaNet, attention has gates."""

    full_attention_interval: int
    partial_rotary_factor: float
    linear_num_key_heads: int
    linear_num_value_heads: int
    linear_key_head_dim: int
    linear_value_head_dim: int
    linear_conv_kernel_dim: int

    @property
    def attention_layers(self) -> int:
        return self.num_hidden_layers // self.full_attention_interval

    @property
    def recurrent_layers(self) -> int:
        return self.num_hidden_layers - self.attention_layers

    @property
    def linear_value_size(self) -> int:
        return self.linear_num_value_heads * self.linear_value_head_dim

    @property
    def conv_size(self) -> int:
        """Channels of the convolution."""
        return 2 * self.linear_num_key_heads * self.linear_key_head_dim + self.linear_value_size

    @property
    def matrices(self) -> dict[str, tuple[int, int]]:
        """Of an attention layer."""
        return {"qkvg": (2 * self.query_size + 2 * self.key_value_size, self.hidden_size)} | self._shared(
            self.query_size
        )

    @property
    def recurrent_matrices(self) -> dict[str, tuple[int, int]]:
        """Of a recurrent layer."""
        hidden, heads = self.hidden_size, self.linear_num_value_heads
        first = {"qkvz": (self.conv_size + self.linear_value_size, hidden), "ba": (2 * heads, hidden)}
        return first | self._shared(self.linear_value_size)

    def _shared(self, mixed: int) -> dict[str, tuple[int, int]]:
        """What layers of both types have, `mixed` being what `o` takes."""
        hidden, inner = self.hidden_size, self.intermediate_size
        return {"o": (hidden, mixed), "gate_up": (2 * inner, hidden), "down": (hidden, inner)}

    @property
    def layer_parameters(self) -> int:
        attention, recurrent = (
            sum(rows * columns for rows, columns in matrices.values())
            for matrices in (self.matrices, self.recurrent_matrices)
        )
        return self.attention_layers * attention + self.recurrent_layers * recurrent

    @property
    def state_bytes(self) -> int:
        """Bytes of a lane's states in fp32, which a step reads and writes."""
        size = self.linear_num_value_heads * self.linear_key_head_dim * self.linear_value_head_dim
        return 4 * self.recurrent_layers * size

    def prefill_flops(self, tokens: int, start: int = 0) -> int:
        """As of a dense decoder; a row decays a state, reads it twice and adds to it: seven operations an element."""
        return super().prefill_flops(tokens, start) + 7 * self.state_bytes // 4 * tokens

    def config(self) -> dict[str, Any]:
        """The config.json of a qwen3_5 of this shape."""
        own = ("linear_num_key_heads", "linear_num_value_heads", "linear_key_head_dim", "linear_value_head_dim")
        own += ("linear_conv_kernel_dim", "full_attention_interval")
        plain = super().config()
        theta = plain.pop("rope_theta")
        rope = {"rope_type": "default", "rope_theta": theta, "partial_rotary_factor": self.partial_rotary_factor}
        return (
            plain
            | {name: getattr(self, name) for name in own}
            | {
                "architectures": ["Qwen3_5ForCausalLM"],
                "model_type": "qwen3_5_text",
                "rope_parameters": rope,
            }
        )


DENSE27B = Shape("dense27b", 64, 5120, 17408, 24, 4, 256, 248_320, 131_072, 1e6, 1e-6, False)
HYBRID27B = HybridShape(
    "hybrid27b", 64, 5120, 17408, 24, 4, 256, 248_320, 262_144, 1e7, 1e-6, False, 4, 0.25, 16, 48, 128, 128, 4
)
SMOLLM2 = Shape("smollm2", 30, 576, 1536, 9, 3, 64, 49_152, 8192, 1e5, 1e-5, True)
SHAPES = {shape.name: shape for shape in (DENSE27B, HYBRID27B, SMOLLM2)}
LARGE = (DENSE27B.name, HYBRID27B.name)
