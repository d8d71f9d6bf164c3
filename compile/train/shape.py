"""The config of the demo hybrid, under the field names of Hugging Face."""

from __future__ import annotations

from typing import Any

from tandem.compile.train.tokenizer import END_OF_TURN_ID, SEPARATOR_ID

# Three recurrent layers to one of attention and more value heads than key heads, as the large models of this family
# have, in some 14 million parameters; head and embedding are shared.
DEMO: dict[str, Any] = {
    "architectures": ["Qwen3_5ForCausalLM"],
    "model_type": "qwen3_5_text",
    "hidden_size": 320,
    "intermediate_size": 832,
    "num_hidden_layers": 8,
    "full_attention_interval": 4,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "hidden_act": "silu",
    "attention_bias": False,
    "attn_output_gate": True,
    "max_position_embeddings": 4096,
    "rms_norm_eps": 1e-6,
    "tie_word_embeddings": True,
    "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.25},
    "linear_num_key_heads": 3,
    "linear_num_value_heads": 6,
    "linear_key_head_dim": 64,
    "linear_value_head_dim": 64,
    "linear_conv_kernel_dim": 4,
    "mamba_ssm_dtype": "float32",
    "mtp_num_hidden_layers": 1,
}


def complete(config: dict[str, Any], vocab_size: int) -> dict[str, Any]:
    """The config.json of a model of this shape with the tokenizer of this package."""
    interval = config.get("full_attention_interval", 4)
    kinds = ["linear_attention" if (i + 1) % interval else "full_attention" for i in range(config["num_hidden_layers"])]
    filled = {
        "layer_types": kinds,
        "vocab_size": vocab_size,
        "bos_token_id": SEPARATOR_ID,
        "eos_token_id": [SEPARATOR_ID, END_OF_TURN_ID],
        "pad_token_id": SEPARATOR_ID,
        "dtype": "bfloat16",
    }
    return filled | config
