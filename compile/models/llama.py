"""The llama family: Llama, SmolLM2, Mistral without a window, Qwen2 and dense Qwen3.

Written as parts that are traced one by one and composed: Embed, one Block per layer, Head, Commit. Plain
PyTorch whose every reduction is an operator of `tandem.kernels`. Letters: R rows, H hidden_size, D head_dim,
G kv heads, F intermediate_size, V vocabulary, O output rows, C positions of the rope tables, L lanes, B blocks.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn

from tandem.compile.models.spec import LlamaSpec
from tandem.kernels import (
    add_rms_norm,
    argmax_gap,
    attention,
    embedding,
    gather_rows,
    kv_move,
    kv_write,
    linear,
    rms_norm,
    rotary,
    swiglu,
)


class Pass(NamedTuple):
    """What every block of a pass is told about its rows; integers are int32."""

    position: Tensor  # [R]
    lane: Tensor  # [R]
    slot: Tensor  # [R]
    prefix: Tensor  # [R]
    ancestor: Tensor  # [R, 32]
    block_table: Tensor  # [L, B]
    cos: Tensor  # [C, D / 2]
    sin: Tensor  # [C, D / 2]


def parameter(*shape: int) -> nn.Parameter:
    return nn.Parameter(torch.empty(shape), requires_grad=False)


class Embed(nn.Module):
    """token [R] -> h [R, H]."""

    def __init__(self, spec: LlamaSpec) -> None:
        super().__init__()
        self.embedding = parameter(spec.vocab_size, spec.hidden_size)

    def forward(self, token: Tensor) -> Tensor:
        return embedding(token, self.embedding)


class Block(nn.Module):
    """One layer. `tree` chooses the attention that gathers ancestors."""

    def __init__(self, spec: LlamaSpec, *, tree: bool = False) -> None:
        super().__init__()
        self.spec, self.tree = spec, tree
        hidden, query, key_value = spec.hidden_size, spec.query_size, spec.key_value_size
        self.input_norm = parameter(hidden)
        self.qkv = parameter(query + 2 * key_value, hidden)
        self.qkv_bias = parameter(query + 2 * key_value) if spec.attention_bias else None
        self.q_norm = parameter(spec.head_dim) if spec.head_norms else None
        self.k_norm = parameter(spec.head_dim) if spec.head_norms else None
        self.o = parameter(hidden, query)
        self.o_bias = parameter(hidden) if spec.output_bias else None
        self.post_norm = parameter(hidden)
        self.gate_up = parameter(2 * spec.intermediate_size, hidden)
        self.down = parameter(hidden, spec.intermediate_size)

    def forward(
        self, h: Tensor, delta: Tensor | None, inputs: Pass, k_cache: Tensor, v_cache: Tensor
    ) -> tuple[Tensor, Tensor]:
        """h [R, H] and the previous layer's delta [R, H] (none in the first) -> this layer's h and delta.

        The residual stream behind a layer is h + delta: the next norm adds them, fused. Writes the rows' keys
        and values into k_cache [P, G, D, T] and v_cache [P, G, T, D].
        """
        eps = self.spec.rms_norm_eps
        if delta is None:
            normed = rms_norm(h, self.input_norm, eps)
        else:
            h, normed = add_rms_norm(h, delta, self.input_norm, eps)
        mixed = self.attend(normed, inputs, k_cache, v_cache)
        h, normed = add_rms_norm(h, mixed, self.post_norm, eps)
        gate_up = linear(normed, self.gate_up, None)  # [R, 2 F]
        return h, linear(swiglu(gate_up), self.down, None)

    def attend(self, x: Tensor, inputs: Pass, k_cache: Tensor, v_cache: Tensor) -> Tensor:
        spec, rows = self.spec, x.shape[0]
        qkv = linear(x, self.qkv, self.qkv_bias)
        k_start, v_start, end = spec.query_size, spec.query_size + spec.key_value_size, qkv.shape[1]
        q = qkv[:, :k_start].view(rows, spec.num_attention_heads, spec.head_dim)
        k = qkv[:, k_start:v_start].view(rows, spec.num_key_value_heads, spec.head_dim)
        v = qkv[:, v_start:end].view(rows, spec.num_key_value_heads, spec.head_dim)
        if self.q_norm is not None and self.k_norm is not None:
            q = rms_norm(q, self.q_norm, spec.rms_norm_eps)
            k = rms_norm(k, self.k_norm, spec.rms_norm_eps)
        q = rotary(q, inputs.cos, inputs.sin, inputs.position)
        k = rotary(k, inputs.cos, inputs.sin, inputs.position)
        kv_write(k, v, k_cache, v_cache, inputs.lane, inputs.slot, inputs.block_table)
        mixed = attention(
            q,
            k_cache,
            v_cache,
            inputs.position,
            inputs.lane,
            inputs.prefix,
            inputs.ancestor,
            inputs.block_table,
            spec.scale,
            self.tree,
        )
        return linear(mixed.view(rows, spec.query_size), self.o, self.o_bias)


class Head(nn.Module):
    """Logits of the wanted rows, their argmax and top-two gap. `head` is the embedding where the two are tied."""

    def __init__(self, spec: LlamaSpec) -> None:
        super().__init__()
        self.eps = spec.rms_norm_eps
        self.final_norm = parameter(spec.hidden_size)
        self.head = parameter(spec.vocab_size, spec.hidden_size)

    def forward(self, h: Tensor, delta: Tensor, output_row: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """h and delta [R, H], output_row [O] int32 -> logits [O, V], argmax [O] int32, gap [O]."""
        h, delta = gather_rows(h, output_row), gather_rows(delta, output_row)
        _, normed = add_rms_norm(h, delta, self.final_norm, self.eps)
        logits = linear(normed, self.head, None)
        argmax, gap = argmax_gap(logits)
        return logits, argmax, gap


class Commit(nn.Module):
    """Moves accepted rows of one layer's cache into place."""

    def forward(
        self,
        k_cache: Tensor,
        v_cache: Tensor,
        move_lane: Tensor,
        move_source: Tensor,
        move_target: Tensor,
        block_table: Tensor,
    ) -> None:
        """move_lane, move_source, move_target [M] int32, applied in order."""
        kv_move(k_cache, v_cache, move_lane, move_source, move_target, block_table)
