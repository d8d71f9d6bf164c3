"""MTP by hand in float64: chains of guesses of the drafting layer, every row's attention written out.

From the checkpoint's own tensors and nothing of Tandem's models. Letters: T rows of known text, D head_dim.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor


class Drafter:
    """The layer `mtp.*` of a qwen3_5 checkpoint with `tensors` by their Hugging Face names."""

    def __init__(self, config: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> None:
        self._w = {name.removeprefix("mtp."): t.double() for name, t in tensors.items() if name.startswith("mtp.")}
        self._embedding = tensors["model.embed_tokens.weight"].double()
        self._head = tensors.get("lm_head.weight", tensors["model.embed_tokens.weight"]).double()
        self._eps, self._heads = config["rms_norm_eps"], config["num_attention_heads"]
        self._groups = self._heads // config["num_key_value_heads"]
        rope = config["rope_parameters"]
        self._turned = int(config["head_dim"] * rope["partial_rotary_factor"])
        self._theta, self._width = rope["rope_theta"], config["head_dim"]

    def chains(self, ids: Tensor, hidden: Tensor, depth: int) -> tuple[Tensor, Tensor]:
        """Greedy chains behind every row: guesses [T, depth] and their logits [T, depth, V].

        ids [T] are those behind the rows, hidden [T, H] is what the model's final norm gave at them. A chain's first
        guess sees the rows up to its own, the next also itself, and so on.
        """
        rows = len(ids)
        keys, values = self._keys(self._enter(ids, hidden), torch.arange(rows))
        seen = torch.ones(rows, rows).tril().bool()
        chain_keys = keys.new_empty(rows, 0, *keys.shape[1:])
        chain_values = chain_keys.clone()
        guesses, logits = [], []
        for step in range(depth):
            x, place = self._enter(ids, hidden), torch.arange(rows) + step
            if step:
                key, value = self._keys(x, place)
                chain_keys = torch.cat((chain_keys, key[:, None]), 1)
                chain_values = torch.cat((chain_values, value[:, None]), 1)
            hidden = self._leave(x, place, (keys, values, seen), (chain_keys, chain_values))
            logits.append(hidden @ self._head.T)
            ids = logits[-1].argmax(-1)
            guesses.append(ids)
        return torch.stack(guesses, 1), torch.stack(logits, 1)

    def _norm(self, x: Tensor, name: str) -> Tensor:
        return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + self._eps) * (1 + self._w[f"{name}.weight"])

    def _enter(self, ids: Tensor, hidden: Tensor) -> Tensor:
        parts = self._norm(self._embedding[ids], "pre_fc_norm_embedding"), self._norm(hidden, "pre_fc_norm_hidden")
        return torch.cat(parts, -1) @ self._w["fc.weight"].T

    def _product(self, x: Tensor, name: str) -> Tensor:
        y = x @ self._w[f"layers.0.{name}.weight"].T
        bias = self._w.get(f"layers.0.{name}.bias")
        return y if bias is None else y + bias

    def _rotated(self, x: Tensor, place: Tensor) -> Tensor:
        """x [T, heads, D]; pairs lie half the turned dimensions apart."""
        half = self._turned // 2
        angles = place[:, None, None] * self._theta ** (-torch.arange(half, dtype=torch.float64) / half)
        pair = torch.complex(x[..., :half], x[..., half : 2 * half]) * torch.polar(torch.ones_like(angles), angles)
        return torch.cat((pair.real, pair.imag, x[..., 2 * half :]), -1)

    def _keys(self, x: Tensor, place: Tensor) -> tuple[Tensor, Tensor]:
        """Keys and values [T, heads, D] of rows, repeated for every query head."""
        normed = self._norm(x, "layers.0.input_layernorm")
        key = self._product(normed, "self_attn.k_proj").unflatten(-1, (-1, self._width))
        value = self._product(normed, "self_attn.v_proj").unflatten(-1, (-1, self._width))
        key = self._rotated(self._norm(key, "layers.0.self_attn.k_norm"), place)
        return key.repeat_interleave(self._groups, 1), value.repeat_interleave(self._groups, 1)

    def _leave(self, x: Tensor, place: Tensor, text: tuple[Tensor, ...], chain: tuple[Tensor, Tensor]) -> Tensor:
        """The row's own hidden: attention over the text up to it and over its chain, SwiGLU, the last norm."""
        normed = self._norm(x, "layers.0.input_layernorm")
        query, gate = self._product(normed, "self_attn.q_proj").unflatten(-1, (self._heads, -1)).chunk(2, -1)
        query = self._rotated(self._norm(query, "layers.0.self_attn.q_norm"), place)
        keys, values, seen = text
        far = torch.einsum("thd,khd->thk", query, keys).masked_fill(~seen[:, None], -torch.inf)
        near = torch.einsum("thd,tkhd->thk", query, chain[0])
        weight = (torch.cat((far, near), -1) * self._width**-0.5).softmax(-1)
        mixed = torch.einsum("thk,khd->thd", weight[..., : len(keys)], values)
        mixed = mixed + torch.einsum("thk,tkhd->thd", weight[..., len(keys) :], chain[1])
        x = x + self._product((mixed * gate.sigmoid()).flatten(1), "self_attn.o_proj")
        normed = self._norm(x, "layers.0.post_attention_layernorm")
        gate, up = self._product(normed, "mlp.gate_proj"), self._product(normed, "mlp.up_proj")
        return self._norm(x + self._product(torch.nn.functional.silu(gate) * up, "mlp.down_proj"), "norm")
