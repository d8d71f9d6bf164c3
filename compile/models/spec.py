"""What a model is, under the field names of Hugging Face configs. Numbers only: no tensors, no files."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class RopeSpec:
    """How positions become angles. Fields of other rope types than `rope_type` stay none."""

    rope_type: str
    rope_theta: float
    factor: float | None = None
    original_max_position_embeddings: int | None = None
    low_freq_factor: float | None = None  # llama3
    high_freq_factor: float | None = None  # llama3
    attention_factor: float | None = None  # yarn, as are those below
    beta_fast: float | None = None
    beta_slow: float | None = None
    mscale: float | None = None
    mscale_all_dim: float | None = None
    truncate: bool = True


@dataclass(frozen=True, slots=True)
class LlamaSpec:
    """A dense decoder of the llama family.

    `attention_bias` is a bias on q, k and v, `output_bias` one on the attention's output projection,
    `head_norms` an RMS norm per head on q and k before the rotation.
    """

    family: str
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    vocab_size: int
    rms_norm_eps: float
    max_position_embeddings: int
    tie_word_embeddings: bool
    attention_bias: bool
    output_bias: bool
    head_norms: bool
    rope: RopeSpec

    @property
    def query_size(self) -> int:
        """Width of q, all heads side by side."""
        return self.num_attention_heads * self.head_dim

    @property
    def key_value_size(self) -> int:
        """Width of k, and of v."""
        return self.num_key_value_heads * self.head_dim

    @property
    def rotary_dim(self) -> int:
        """How many of a head's first dimensions are turned."""
        return self.head_dim

    @property
    def scale(self) -> float:
        """What attention scores are multiplied with."""
        return float(self.head_dim**-0.5)


FULL_ATTENTION, LINEAR_ATTENTION = "full_attention", "linear_attention"
"""What `layer_types` holds: a layer over the KV cache, or one over a recurrent state."""


@dataclass(frozen=True, slots=True)
class HybridSpec(LlamaSpec):
    """A decoder whose layers are gated attention or Gated DeltaNet, as `layer_types` says.

    `output_bias` and `attention_bias` go together, `head_norms` are there. The recurrent state is fp32.
    """

    layer_types: tuple[str, ...]
    partial_rotary_factor: float
    linear_num_key_heads: int
    linear_num_value_heads: int
    linear_key_head_dim: int
    linear_value_head_dim: int
    linear_conv_kernel_dim: int

    @property
    def num_recurrent_layers(self) -> int:
        return self.layer_types.count(LINEAR_ATTENTION)

    @property
    def rotary_dim(self) -> int:
        return int(self.head_dim * self.partial_rotary_factor)

    @property
    def linear_key_size(self) -> int:
        """Width of a recurrent layer's q, and of its k."""
        return self.linear_num_key_heads * self.linear_key_head_dim

    @property
    def linear_value_size(self) -> int:
        """Width of a recurrent layer's v, z and o."""
        return self.linear_num_value_heads * self.linear_value_head_dim

    @property
    def conv_size(self) -> int:
        """Channels of the convolution: q, k and v side by side."""
        return 2 * self.linear_key_size + self.linear_value_size

    @property
    def state_shape(self) -> tuple[int, int, int]:
        """One layer's state of one lane: [value heads, dk, dv]."""
        return self.linear_num_value_heads, self.linear_key_head_dim, self.linear_value_head_dim

    @property
    def tail_shape(self) -> tuple[int, int]:
        """One layer's raw inputs of the convolution that one lane keeps: [W - 1, channels]."""
        return self.linear_conv_kernel_dim - 1, self.conv_size

    @property
    def factor_shapes(self) -> tuple[tuple[int, ...], ...]:
        """What a verify keeps of each row in one layer: shapes in the order of `qwen3_5.Factors`."""
        heads, dk, dv = self.state_shape
        return (self.conv_size,), (self.linear_num_key_heads, dk), (heads, dv), (heads,)


def layer_types(spec: LlamaSpec) -> tuple[str, ...]:
    """The type of each layer."""
    return spec.layer_types if isinstance(spec, HybridSpec) else (FULL_ATTENTION,) * spec.num_hidden_layers
