"""The config of a drafter to be trained, in the published fields, from what its target is.

The layout fixes the width, which is the target's hidden size; how large a drafter is follows from its layers, the width
of its MLP, how many streams it reads and the selector's rank.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tandem.compile.models.dflash2_config import ARCHITECTURE, SECTION, SLIDING
from tandem.compile.models.spec import LlamaSpec
from tandem.errors import UsageError

HEAD_DIM = 64
CONV_TAPS, CONV_GROUP, TOP_K = 2, 16, 16


@dataclass(frozen=True, slots=True)
class Shape:
    """What is chosen; `taps` are layers of the target whose outputs are read, none for an even spread of `num_taps`."""

    block: int = 16
    layers: int = 2
    inner: int = 512
    heads: int = 4
    kv_heads: int = 2
    num_taps: int = 3
    taps: tuple[int, ...] = ()
    rank: int = 16
    window: int = 2048


def drafter_config(target: LlamaSpec, shape: Shape, mask_token_id: int) -> dict[str, Any]:
    """The config.json of a drafter. UsageError for taps that the target does not have."""
    taps = shape.taps or spread(target.num_hidden_layers, shape.num_taps)
    if taps[-1] >= target.num_hidden_layers:
        raise UsageError(
            f"--taps {','.join(map(str, taps))}: the target has layers 0 to {target.num_hidden_layers - 1}; give those"
        )
    return {
        "architectures": [ARCHITECTURE],
        "model_type": "qwen3",
        "hidden_size": target.hidden_size,
        "intermediate_size": shape.inner,
        "num_hidden_layers": shape.layers,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.kv_heads,
        "head_dim": HEAD_DIM,
        "hidden_act": "silu",
        "attention_bias": False,
        "is_causal": False,
        "layer_types": [SLIDING] * shape.layers,
        "sliding_window": shape.window,
        "use_sliding_window": True,
        "max_position_embeddings": target.max_position_embeddings,
        "rms_norm_eps": target.rms_norm_eps,
        "rope_parameters": {"rope_type": "default", "rope_theta": target.rope.rope_theta},
        "tie_word_embeddings": False,
        "vocab_size": target.vocab_size,
        "num_target_layers": target.num_hidden_layers,
        "dtype": "bfloat16",
        SECTION: {
            "block_size": shape.block,
            "mask_token_id": mask_token_id,
            "target_layer_ids": list(taps),
            "conv_kernel_size": CONV_TAPS,
            "conv_group_size": CONV_GROUP,
            "selector_rank": shape.rank,
            "selector_top_k": TOP_K,
        },
    }


def spread(layers: int, count: int) -> tuple[int, ...]:
    """`count` layers from the second to the third from the end, as published drafters have them; fewer if there are."""
    first, last = min(1, layers - 1), max(layers - 3, min(1, layers - 1))
    if count == 1:
        return (layers // 2,)
    return tuple(sorted({round(first + i * (last - first) / (count - 1)) for i in range(count)}))
