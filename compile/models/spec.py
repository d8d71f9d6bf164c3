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
    def scale(self) -> float:
        """What attention scores are multiplied with."""
        return float(self.head_dim**-0.5)
