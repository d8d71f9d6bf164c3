"""DFlash2 written by hand in float64, a block at a time over the tensors of the published layout; and tiny drafters.

Knows nothing of Tandem: numpy, and the paper's and the published code's order of things.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file

Tensors = dict[str, np.ndarray]

TINY: dict[str, Any] = {
    "architectures": ["DFlash2DraftModel"],
    "model_type": "qwen3",
    "attention_bias": False,
    "attention_dropout": 0.0,
    "is_causal": False,
    "hidden_act": "silu",
    "hidden_size": 24,
    "intermediate_size": 40,
    "num_hidden_layers": 2,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "head_dim": 10,
    "vocab_size": 61,
    "rms_norm_eps": 1e-5,
    "max_position_embeddings": 256,
    "rope_parameters": {"rope_theta": 5000.0, "rope_type": "default"},
    "sliding_window": 12,
    "layer_types": ["sliding_attention"] * 2,
    "use_sliding_window": True,
    "num_target_layers": 7,
    "dtype": "bfloat16",
    "dflash_config": {
        "block_size": 5,
        "mask_token_id": 60,
        "target_layer_ids": [1, 3, 6],
        "conv_kernel_size": 3,
        "conv_group_size": 4,
        "selector_rank": 7,
        "selector_top_k": 4,
    },
}


def tensors(config: dict[str, Any], seed: int = 0) -> Tensors:
    """Random weights of every kind, float32, under the published names."""
    random, own, hidden = np.random.default_rng(seed), config["dflash_config"], config["hidden_size"]
    query, kv, inner = (
        config["num_attention_heads"] * config["head_dim"],
        config["num_key_value_heads"] * config["head_dim"],
        config["intermediate_size"],
    )
    taps, rank = own["conv_kernel_size"], own["selector_rank"]
    shapes: dict[str, tuple[int, ...]] = {
        "fc.weight": (hidden, len(own["target_layer_ids"]) * hidden),
        "hidden_norm.weight": (hidden,),
        "norm.weight": (hidden,),
        "candidate_selector.hidden_projection.weight": (rank, hidden),
        "candidate_selector.predecessor_codebook": (config["vocab_size"], rank),
        "candidate_selector.successor_codebook": (config["vocab_size"], rank),
    }
    for layer in range(config["num_hidden_layers"]):
        parts: dict[str, tuple[int, ...]] = {
            "input_layernorm.weight": (hidden,),
            "post_attention_layernorm.weight": (hidden,),
            "self_attn.q_proj.weight": (query, hidden),
            "self_attn.k_proj.weight": (kv, hidden),
            "self_attn.v_proj.weight": (kv, hidden),
            "self_attn.o_proj.weight": (hidden, query),
            "self_attn.q_norm.weight": (config["head_dim"],),
            "self_attn.k_norm.weight": (config["head_dim"],),
            "mlp.gate_proj.weight": (inner, hidden),
            "mlp.up_proj.weight": (inner, hidden),
            "mlp.down_proj.weight": (hidden, inner),
        }
        for conv in ("attention_conv", "mlp_conv"):
            parts[f"{conv}.base_kernel"] = (2, taps, hidden)
            parts[f"{conv}.kernel_projection.weight"] = (2 * taps * hidden // own["conv_group_size"], hidden)
        shapes |= {f"layers.{layer}.{name}": shape for name, shape in parts.items()}
    return {
        name: (random.standard_normal(shape) * shape[-1] ** -0.5 + (len(shape) == 1)).astype(np.float32)
        for name, shape in shapes.items()
    }


def make_drafter(folder: Path, config: dict[str, Any] | None = None, seed: int = 0) -> dict[str, Any]:
    """A checkpoint in the published layout; its config."""
    config = TINY if config is None else config
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    stored = {name: torch.from_numpy(tensor).bfloat16() for name, tensor in tensors(config, seed).items()}
    save_file(stored, folder / "model.safetensors", metadata={"format": "pt"})
    return config


def lattice(
    config: dict[str, Any], weights: Tensors, embedding: np.ndarray, head: np.ndarray, taps: np.ndarray, anchor: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray, list[int]]:
    """One block behind a text whose tokens but the last gave `taps` [n, n_taps * H]; `anchor` is the last.

    Candidates [S - 1, k], their logits, scores [S - 1, k, k], and the walk's tokens.
    """
    own, eps, dim = config["dflash_config"], config["rms_norm_eps"], config["head_dim"]
    w = {name: tensor.astype(np.float64) for name, tensor in weights.items()}
    size, start = own["block_size"], len(taps)

    def norm(x: np.ndarray, name: str) -> np.ndarray:
        return x / np.sqrt((x**2).mean(-1, keepdims=True) + eps) * w[f"{name}.weight"]

    def turn(x: np.ndarray, positions: np.ndarray) -> np.ndarray:
        """[n, heads, dim]; angles as the tables hold them, rounded to float32."""
        rate = config["rope_parameters"]["rope_theta"] ** -(np.arange(0, dim, 2) / dim)
        angle = positions[:, None, None] * rate
        cos, sin = np.cos(angle).astype(np.float32), np.sin(angle).astype(np.float32)
        a, b = x[..., : dim // 2], x[..., dim // 2 :]
        return np.concatenate((a * cos - b * sin, b * cos + a * sin), -1)

    def conv(x: np.ndarray, normed: np.ndarray, name: str, side: int) -> np.ndarray:
        count = own["conv_kernel_size"]
        moved = (normed @ w[f"{name}.kernel_projection.weight"].T).reshape(size, 2, count, -1)[:, side]
        out = np.zeros_like(x)
        for row in range(size):
            for tap in range(min(count, row + 1)):
                factor = w[f"{name}.base_kernel"][side, tap] + np.repeat(moved[row, tap], own["conv_group_size"])
                out[row] += factor * x[row - tap]
        return out

    def heads(x: np.ndarray, name: str) -> np.ndarray:
        return (x @ w[f"{name}.weight"].T).reshape(len(x), -1, dim)

    context = norm(taps @ w["fc.weight"].T, "hidden_norm")
    past, here = np.arange(start), np.arange(start, start + size)
    h = embedding[[anchor] + [own["mask_token_id"]] * (size - 1)].astype(np.float64)
    groups = config["num_attention_heads"] // config["num_key_value_heads"]
    for layer in range(config["num_hidden_layers"]):
        at = f"layers.{layer}"
        x = norm(h, f"{at}.input_layernorm")
        y = conv(x, x, f"{at}.attention_conv", 0)
        q = turn(norm(heads(y, f"{at}.self_attn.q_proj"), f"{at}.self_attn.q_norm"), here)
        keys, values = [], []
        for rows, positions in ((context, past), (y, here)):
            keys.append(turn(norm(heads(rows, f"{at}.self_attn.k_proj"), f"{at}.self_attn.k_norm"), positions))
            values.append(heads(rows, f"{at}.self_attn.v_proj"))
        k, v = (np.repeat(np.concatenate(parts), groups, 1) for parts in (keys, values))
        mixed = np.zeros((size, config["num_attention_heads"], dim))
        for row in range(size):
            seen = [t for t in range(start + size) if t >= start or here[row] - t < config["sliding_window"]]
            for head_index in range(mixed.shape[1]):
                score = k[seen, head_index] @ q[row, head_index] / np.sqrt(dim)
                weight = np.exp(score - score.max())
                mixed[row, head_index] = weight @ v[seen, head_index] / weight.sum()
        h = h + conv(mixed.reshape(size, -1) @ w[f"{at}.self_attn.o_proj.weight"].T, x, f"{at}.attention_conv", 1)
        x = norm(h, f"{at}.post_attention_layernorm")
        y = conv(x, x, f"{at}.mlp_conv", 0)
        gate, up = (y @ w[f"{at}.mlp.{name}_proj.weight"].T for name in ("gate", "up"))
        inner = gate / (1 + np.exp(-gate)) * up
        h = h + conv(inner @ w[f"{at}.mlp.down_proj.weight"].T, x, f"{at}.mlp_conv", 1)
    hidden = norm(h, "norm")[1:]
    return select(config, w, hidden, hidden @ head.astype(np.float64).T, anchor)


def select(
    config: dict[str, Any], w: Tensors, hidden: np.ndarray, logits: np.ndarray, anchor: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray, list[int]]:
    """The last part of `lattice`: candidates, scores and walk of slots, from what stands before the head."""
    k = config["dflash_config"]["selector_top_k"]
    candidates = np.argsort(-logits, axis=-1, kind="stable")[:, :k]
    unary = np.take_along_axis(logits, candidates, -1)
    gate = hidden @ w["candidate_selector.hidden_projection.weight"].T
    before, after = (w[f"candidate_selector.{name}_codebook"] for name in ("predecessor", "successor"))
    scores, walk, taken = np.zeros((len(candidates), k, k)), [], 0
    for slot in range(len(candidates)):
        known = [anchor] * k if slot == 0 else candidates[slot - 1]
        for p in range(k):
            scores[slot, p] = unary[slot] + after[candidates[slot]] @ (before[known[p]] * gate[slot])
        taken = int(scores[slot, taken].argmax())
        walk.append(int(candidates[slot, taken]))
    return candidates, unary, scores, walk
