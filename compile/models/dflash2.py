"""DFlash2 (z-lab): a block of tokens drafted in one pass, from what the target thought of the tokens before.

Written as parts that are traced one by one and composed: in the target's passes a Tap per stream that is read; to sync,
Fuse and a Context per layer; to draft, `llama.Embed` with the target's embedding, a Block per layer and Lattice with
the target's head. Plain PyTorch whose every reduction
is an operator of `tandem.kernels`. Letters: R rows, H hidden_size, D head_dim, G kv heads, W tap_width, K taps of the
convolutions, S delta_size, J selector_rank, k selector_top_k, V vocabulary, O slots (rows but the anchors), C positions
of the rope tables, L lanes, B pages of a lane.
"""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor, nn

from tandem.compile.models.dflash2_config import Dflash2Spec
from tandem.compile.models.llama import parameter
from tandem.kernels import (
    add_rms_norm,
    block_attention,
    block_conv,
    gather_rows,
    kv_write,
    lattice_scores,
    lattice_walk,
    linear,
    rms_norm,
    rotary,
    scatter_sum,
    swiglu,
    top_k,
)


class Pass(NamedTuple):
    """What every part is told about its rows; integers are int32. A row's slot is its position.

    Of a draft the rows of a block stand together: the anchor, then mask tokens at the positions behind it; `prefix` is
    the anchor's position. Of a sync, whose rows are committed tokens in any order, nobody reads `prefix`.
    """

    position: Tensor  # [R]
    lane: Tensor  # [R]
    slot: Tensor  # [R]
    prefix: Tensor  # [R]
    block_table: Tensor  # [L, B]
    cos: Tensor  # [C, D / 2]
    sin: Tensor  # [C, D / 2]


class Tap(nn.Module):
    """The residual stream between two layers of the target, left for the drafter in its columns of the ring."""

    def forward(self, h: Tensor, delta: Tensor, taps: Tensor, tap_out: Tensor) -> None:
        """h and delta [R, H], whose sum it is; taps [any, H], tap_out [R] int32, its row for each, -1 for none."""
        scatter_sum(h, delta, taps, tap_out)


class Fuse(nn.Module):
    """The target's tapped streams become one context vector a token."""

    def __init__(self, spec: Dflash2Spec) -> None:
        super().__init__()
        self.eps = spec.rms_norm_eps
        self.fc = parameter(spec.hidden_size, spec.tap_width)
        self.hidden_norm = parameter(spec.hidden_size)

    def forward(self, taps: Tensor, tap: Tensor) -> Tensor:
        """taps [any, W], tap [R] int32, which of its rows are read -> context [R, H]."""
        return rms_norm(linear(gather_rows(taps, tap), self.fc, None), self.hidden_norm, self.eps)


class Keeper(nn.Module):
    """What one layer keeps of the tokens that its rows see: keys and values, written to their slots."""

    def __init__(self, spec: Dflash2Spec) -> None:
        super().__init__()
        self.spec = spec
        self.kv = parameter(2 * spec.key_value_size, spec.hidden_size)
        self.k_norm = parameter(spec.head_dim)

    def project(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """x [R, H] -> keys, not turned yet, and values [R, G, D]."""
        spec, rows = self.spec, x.shape[0]
        kv = linear(x, self.kv, None)
        k = kv[:, : spec.key_value_size].view(rows, spec.num_key_value_heads, spec.head_dim)
        v = kv[:, spec.key_value_size : kv.shape[1]].view(rows, spec.num_key_value_heads, spec.head_dim)
        return rms_norm(k, self.k_norm, spec.rms_norm_eps), v

    def keep(self, k: Tensor, v: Tensor, inputs: Pass, k_cache: Tensor, v_cache: Tensor) -> None:
        """k and v as `project` gives them; k_cache [P, G, D, T], v_cache [P, G, T, D]."""
        k = rotary(k, inputs.cos, inputs.sin, inputs.position)
        kv_write(k, v, k_cache, v_cache, inputs.lane, inputs.slot, inputs.block_table)


class Context(Keeper):
    """One layer over committed tokens; its weights are the Block's."""

    def forward(self, x: Tensor, inputs: Pass, k_cache: Tensor, v_cache: Tensor) -> None:
        """x [R, H], what Fuse gave; k_cache [P, G, D, T], v_cache [P, G, T, D]"""
        self.keep(*self.project(x), inputs, k_cache, v_cache)


class Block(Keeper):
    """One layer over the rows of draft blocks. Each sublayer stands between two convolutions inside its block."""

    def __init__(self, spec: Dflash2Spec) -> None:
        super().__init__(spec)
        hidden, query, conv = spec.hidden_size, spec.query_size, spec.conv_kernel_size * spec.hidden_size
        self.input_norm = parameter(hidden)
        self.attention_conv_in = parameter(conv)
        self.attention_conv_out = parameter(conv)
        self.attention_delta = parameter(2 * spec.delta_size, hidden)
        self.q = parameter(query, hidden)
        self.q_norm = parameter(spec.head_dim)
        self.o = parameter(hidden, query)
        self.post_norm = parameter(hidden)
        self.mlp_conv_in = parameter(conv)
        self.mlp_conv_out = parameter(conv)
        self.mlp_delta = parameter(2 * spec.delta_size, hidden)
        self.gate_up = parameter(2 * spec.intermediate_size, hidden)
        self.down = parameter(hidden, spec.intermediate_size)

    def forward(
        self, h: Tensor, delta: Tensor | None, inputs: Pass, k_cache: Tensor, v_cache: Tensor
    ) -> tuple[Tensor, Tensor]:
        """h [R, H] and the previous layer's delta [R, H] (none in the first) -> this layer's h and delta.

        Writes the rows' keys and values into their slots, behind the context; what is committed later is written over.
        """
        spec = self.spec
        if delta is None:
            x = rms_norm(h, self.input_norm, spec.rms_norm_eps)
        else:
            h, x = add_rms_norm(h, delta, self.input_norm, spec.rms_norm_eps)
        moved = linear(x, self.attention_delta, None)
        x = self.convolve(x, moved[:, : spec.delta_size], self.attention_conv_in, inputs)
        x = self.attend(x, inputs, k_cache, v_cache)
        x = self.convolve(x, moved[:, spec.delta_size : moved.shape[1]], self.attention_conv_out, inputs)
        h, x = add_rms_norm(h, x, self.post_norm, spec.rms_norm_eps)
        moved = linear(x, self.mlp_delta, None)
        x = self.convolve(x, moved[:, : spec.delta_size], self.mlp_conv_in, inputs)
        x = linear(swiglu(linear(x, self.gate_up, None)), self.down, None)
        return h, self.convolve(x, moved[:, spec.delta_size : moved.shape[1]], self.mlp_conv_out, inputs)

    def convolve(self, x: Tensor, moved: Tensor, weight: Tensor, inputs: Pass) -> Tensor:
        return block_conv(x, moved, weight, inputs.position, inputs.prefix, self.spec.conv_kernel_size)

    def attend(self, x: Tensor, inputs: Pass, k_cache: Tensor, v_cache: Tensor) -> Tensor:
        spec, rows = self.spec, x.shape[0]
        q = linear(x, self.q, None).view(rows, spec.num_attention_heads, spec.head_dim)
        q, (k, v) = rms_norm(q, self.q_norm, spec.rms_norm_eps), self.project(x)
        # Both rotations and the write stand together, where one kernel does all three.
        q = rotary(q, inputs.cos, inputs.sin, inputs.position)
        self.keep(k, v, inputs, k_cache, v_cache)
        mixed = block_attention(
            q,
            k_cache,
            v_cache,
            inputs.position,
            inputs.lane,
            inputs.prefix,
            inputs.block_table,
            spec.scale,
            spec.block_size,
            spec.sliding_window,
        )
        return linear(mixed.view(rows, spec.query_size), self.o, None)


class Lattice(nn.Module):
    """Of each slot the likeliest tokens, how well each follows those before, and the greedy walk through them."""

    def __init__(self, spec: Dflash2Spec) -> None:
        super().__init__()
        self.spec = spec
        self.final_norm = parameter(spec.hidden_size)
        self.head = parameter(spec.vocab_size, spec.hidden_size)
        self.gate = parameter(spec.selector_rank, spec.hidden_size)
        self.predecessor = parameter(spec.vocab_size, spec.selector_rank)
        self.successor = parameter(spec.vocab_size, spec.selector_rank)

    def forward(
        self, h: Tensor, delta: Tensor, inputs: Pass, token: Tensor, output_row: Tensor
    ) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
        """h and delta [R, H], token [R], output_row [O] -> logits [O, V], and of the likeliest ids and logits [O, k],
        lse [O], score [O, k, k], walk [O].

        score[o, p, c]: the logit of c, and how well it follows p of the slot before; walk: places in a row of ids.
        """
        h, delta = gather_rows(h, output_row), gather_rows(delta, output_row)
        _, x = add_rms_norm(h, delta, self.final_norm, self.spec.rms_norm_eps)
        logits = linear(x, self.head, None)
        candidate, unary, lse = top_k(logits, self.spec.selector_top_k)
        where = (output_row, inputs.position, inputs.prefix)
        gate = linear(x, self.gate, None)
        score = lattice_scores(candidate, unary, gate, token, *where, self.predecessor, self.successor)
        return logits, candidate, unary, lse, score, lattice_walk(score, *where)
