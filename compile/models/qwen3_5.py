"""The qwen3_5 family: the dense text models of Qwen3.5, 3.6 and 3.8. Layers are Gated DeltaNet or gated attention.

Written as parts that are traced one by one and composed: Embed and Head of `llama`, an AttentionBlock or a
RecurrentBlock per layer, and what commits each. Plain PyTorch whose every reduction is an operator of `tandem.kernels`.
Letters: R rows, H hidden_size, D head_dim, G kv heads, C positions of the rope tables, L lanes, B blocks, S state
slots, F rows of factors; of a recurrent layer Hk key heads of dk, Hv value heads of dv, W taps over N channels.
"""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor, nn

from tandem.compile.models.llama import parameter
from tandem.compile.models.spec import HybridSpec
from tandem.kernels import (
    add_rms_norm,
    attention,
    causal_conv,
    conv_commit,
    conv_verify,
    delta_commit,
    delta_gates,
    delta_rule,
    delta_verify,
    gated_rms_norm,
    kv_write,
    linear,
    rms_norm,
    rotary,
    sigmoid_gate,
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
    cos: Tensor  # [C, rotary_dim / 2]
    sin: Tensor  # [C, rotary_dim / 2]
    parent: Tensor  # [R], the row of this pass that a row follows, or -1
    state_slot: Tensor  # [L]


class Factors(NamedTuple):
    """What a verify keeps of its rows in one recurrent layer, for the commit: all that its state was changed by."""

    raw: Tensor  # [F, N], inputs of the convolution
    k: Tensor  # [F, Hk, dk], of length one
    u: Tensor  # [F, Hv, dv]
    decay: Tensor  # [F, Hv]


class Block(nn.Module):
    """The residual stream and the SwiGLU that layers of both types share."""

    def __init__(self, spec: HybridSpec, *, tree: bool) -> None:
        super().__init__()
        self.spec, self.tree = spec, tree
        self.input_norm = parameter(spec.hidden_size)
        self.post_norm = parameter(spec.hidden_size)
        self.gate_up = parameter(2 * spec.intermediate_size, spec.hidden_size)
        self.down = parameter(spec.hidden_size, spec.intermediate_size)

    def enter(self, h: Tensor, delta: Tensor | None) -> tuple[Tensor, Tensor]:
        """(h + delta, its norm); the first layer has no delta yet."""
        if delta is None:
            return h, rms_norm(h, self.input_norm, self.spec.rms_norm_eps)
        return add_rms_norm(h, delta, self.input_norm, self.spec.rms_norm_eps)

    def leave(self, h: Tensor, mixed: Tensor) -> tuple[Tensor, Tensor]:
        """This layer's h and delta; the residual stream behind it is their sum."""
        h, normed = add_rms_norm(h, mixed, self.post_norm, self.spec.rms_norm_eps)
        return h, linear(swiglu(linear(normed, self.gate_up, None)), self.down, None)


class AttentionBlock(Block):
    """Attention whose heads have a gate each: q, k, v and the gates come of one product."""

    def __init__(self, spec: HybridSpec, *, tree: bool = False) -> None:
        super().__init__(spec, tree=tree)
        width = 2 * spec.query_size + 2 * spec.key_value_size
        self.qkvg = parameter(width, spec.hidden_size)
        self.qkvg_bias = parameter(width) if spec.attention_bias else None
        self.q_norm = parameter(spec.head_dim)
        self.k_norm = parameter(spec.head_dim)
        self.o = parameter(spec.hidden_size, spec.query_size)
        self.o_bias = parameter(spec.hidden_size) if spec.output_bias else None

    def forward(
        self, h: Tensor, delta: Tensor | None, inputs: Pass, k_cache: Tensor, v_cache: Tensor
    ) -> tuple[Tensor, Tensor]:
        """As `llama.Block`: h and delta [R, H], k_cache [P, G, D, T], v_cache [P, G, T, D]."""
        h, x = self.enter(h, delta)
        q, gate = self.project(x, inputs, k_cache, v_cache)
        mixed = attention(
            q,
            k_cache,
            v_cache,
            inputs.position,
            inputs.lane,
            inputs.prefix,
            inputs.ancestor,
            inputs.block_table,
            self.spec.scale,
            self.tree,
        )
        gated = sigmoid_gate(mixed.view(x.shape[0], self.spec.query_size), gate)
        return self.leave(h, linear(gated, self.o, self.o_bias))

    def project(self, x: Tensor, inputs: Pass, k_cache: Tensor, v_cache: Tensor) -> tuple[Tensor, Tensor]:
        """x [R, H] -> queries [R, heads, D] and gates [R, query_size]; keys and values go to the cache."""
        spec, rows = self.spec, x.shape[0]
        qkvg = linear(x, self.qkvg, self.qkvg_bias)
        k_start, v_start = spec.query_size, spec.query_size + spec.key_value_size
        gate_start, end = v_start + spec.key_value_size, qkvg.shape[1]
        q = qkvg[:, :k_start].view(rows, spec.num_attention_heads, spec.head_dim)
        k = qkvg[:, k_start:v_start].view(rows, spec.num_key_value_heads, spec.head_dim)
        v = qkvg[:, v_start:gate_start].view(rows, spec.num_key_value_heads, spec.head_dim)
        q, k = rms_norm(q, self.q_norm, spec.rms_norm_eps), rms_norm(k, self.k_norm, spec.rms_norm_eps)
        q = rotary(q, inputs.cos, inputs.sin, inputs.position)
        k = rotary(k, inputs.cos, inputs.sin, inputs.position)
        kv_write(k, v, k_cache, v_cache, inputs.lane, inputs.slot, inputs.block_table)
        return q, qkvg[:, gate_start:end]


class RecurrentBlock(Block):
    """Gated DeltaNet. `rounded` keeps the rounding of models trained in bfloat16 between the last norm and its gate."""

    def __init__(self, spec: HybridSpec, *, tree: bool = False, rounded: bool = False) -> None:
        super().__init__(spec, tree=tree)
        self.rounded = rounded
        self.qkvz = parameter(spec.conv_size + spec.linear_value_size, spec.hidden_size)
        self.ba = parameter(2 * spec.linear_num_value_heads, spec.hidden_size)
        self.conv = parameter(spec.linear_conv_kernel_dim * spec.conv_size)
        self.a_log = parameter(spec.linear_num_value_heads)
        self.dt_bias = parameter(spec.linear_num_value_heads)
        self.norm = parameter(spec.linear_value_head_dim)
        self.o = parameter(spec.hidden_size, spec.linear_value_size)

    def forward(
        self,
        h: Tensor,
        delta: Tensor | None,
        inputs: Pass,
        state: Tensor,
        tail: Tensor,
        factors: Factors | None = None,
    ) -> tuple[Tensor, Tensor]:
        """h and delta [R, H], state [S, Hv, dk, dv], tail [S, W - 1, N] -> this layer's h and delta.

        Without `factors` all rows stay: state and tail are moved on. With them both are left, and factors written.
        """
        h, x = self.enter(h, delta)
        spec, rows = self.spec, x.shape[0]
        qkvz, ba = linear(x, self.qkvz, None), linear(x, self.ba, None)
        heads, k_start, v_start = spec.linear_num_value_heads, spec.linear_key_size, 2 * spec.linear_key_size
        b, a = ba[:, :heads], ba[:, heads : 2 * heads]
        raw, z = qkvz[:, : spec.conv_size], qkvz[:, spec.conv_size : qkvz.shape[1]]
        decay, beta = delta_gates(a, b, self.a_log, self.dt_bias)
        where = (inputs.state_slot, inputs.lane, inputs.position, inputs.parent)
        if factors is None:
            qkv = causal_conv(raw, self.conv, tail, *where)
        else:
            qkv = conv_verify(raw, self.conv, tail, *where, factors.raw, self.tree)
        q = qkv[:, :k_start].view(rows, spec.linear_num_key_heads, spec.linear_key_head_dim)
        k = qkv[:, k_start:v_start].view(rows, spec.linear_num_key_heads, spec.linear_key_head_dim)
        v = qkv[:, v_start : spec.conv_size].view(rows, heads, spec.linear_value_head_dim)
        if factors is None:
            mixed = delta_rule(q, k, v, decay, beta, state, *where)
        else:
            kept = (factors.k, factors.u, factors.decay)
            mixed = delta_verify(q, k, v, decay, beta, state, *where, *kept, self.tree)
        z = z.view(rows, heads, spec.linear_value_head_dim)
        gated = gated_rms_norm(mixed, z, self.norm, spec.rms_norm_eps, self.rounded)
        return self.leave(h, linear(gated.view(rows, spec.linear_value_size), self.o, None))


class RecurrentCommit(nn.Module):
    """Moves one recurrent layer on by accepted rows; `llama.Commit` is the one of attention."""

    def forward(
        self,
        factors: Factors,
        state: Tensor,
        tail: Tensor,
        state_slot: Tensor,
        move_lane: Tensor,
        move_row: Tensor,
        move_target: Tensor,
    ) -> None:
        """move_lane, move_row, move_target [M] int32: in order, every row of each lane's accepted path."""
        moves = (state_slot, move_lane, move_row, move_target)
        conv_commit(factors.raw, tail, *moves)
        delta_commit(factors.k, factors.u, factors.decay, state, *moves)
