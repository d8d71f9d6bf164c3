"""The gated delta rule: a matrix per value head that forgets by a gate and corrects what it recalls, row by row.

With S the state [dk, dv] behind the row before: S <- S * decay; u = beta * (v - S^T k); S <- S + k u^T; o = S^T q.
The same operations in the same order for a prompt, a step, a chain, a tree and a commit, so none moves a bit. Rows,
parents and slots are those of `path`. Letters: Hk key heads, Hv value heads (value head h reads key head
h // (Hv / Hk)), dk and dv their widths.

Source: Yang, Kautz, Hatamizadeh, "Gated Delta Networks" (2024); gates and norms as in Qwen3.5.
"""

from __future__ import annotations

import torch
from torch import Tensor

from tandem.kernels.path import carried, row_before
from tandem.kernels.precision import compute_dtype

EPSILON = 1e-6
"""Added to a key's or query's sum of squares."""


@torch.library.custom_op("tandem::delta_gates", mutates_args=())
def delta_gates(a: Tensor, b: Tensor, a_log: Tensor, dt_bias: Tensor) -> tuple[Tensor, Tensor]:
    """a and b [R, Hv], a_log and dt_bias [Hv] -> decay = exp(-exp(a_log) softplus(a + dt_bias)) and beta = sigmoid(b).

    Both [R, Hv]. softplus(x) is x above 20.
    """
    dtype = compute_dtype(a)
    rate = torch.nn.functional.softplus(a.to(dtype) + dt_bias.to(dtype), threshold=20.0)
    return torch.exp(-a_log.to(dtype).exp() * rate), torch.sigmoid(b.to(dtype))


@delta_gates.register_fake
def _(a: Tensor, b: Tensor, a_log: Tensor, dt_bias: Tensor) -> tuple[Tensor, Tensor]:
    dtype = compute_dtype(a)
    return a.new_empty(a.shape, dtype=dtype), b.new_empty(b.shape, dtype=dtype)


def _unit(x: Tensor) -> Tensor:
    """Heads [..., dk] of length one."""
    return x * torch.rsqrt(x.square().sum(-1, keepdim=True) + EPSILON)


def _added(state: Tensor, k: Tensor, u: Tensor) -> Tensor:
    """state [Hv, dk, dv] + k u^T; k [Hk, dk], u [Hv, dv]."""
    return state + _shared(k, u.shape[0])[:, :, None] * u[:, None, :]


def _read(state: Tensor, x: Tensor) -> Tensor:
    """S^T x of every value head, [Hv, dv]; x [Hk, dk]."""
    return (state * _shared(x, state.shape[0])[:, :, None]).sum(1)


def _shared(x: Tensor, value_heads: int) -> Tensor:
    """Key heads [Hk, dk] as their value heads see them, [Hv, dk]."""
    return x.repeat_interleave(value_heads // x.shape[0], 0)


Row = tuple[Tensor, Tensor, Tensor, Tensor, Tensor]
"""q and k [Hk, dk], v [Hv, dv], decay and beta [Hv] of one row."""


def _step(state: Tensor, row: Row) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """(o, the new state, the key of length one, u) of one row."""
    q, k, v, decay, beta = (x.to(compute_dtype(row[0])) for x in row)
    q, k = _unit(q) * k.shape[-1] ** -0.5, _unit(k)
    state = state.to(q.dtype) * decay[:, None, None]
    u = beta[:, None] * (v - _read(state, k))
    state = _added(state, k, u)
    return _read(state, q), state, k, u


@torch.library.custom_op("tandem::delta_rule", mutates_args=("state",))
def delta_rule(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    decay: Tensor,
    beta: Tensor,
    state: Tensor,
    state_slot: Tensor,
    lane: Tensor,
    position: Tensor,
    parent: Tensor,
) -> Tensor:
    """q and k [R, Hk, dk], v [R, Hv, dv], decay and beta [R, Hv] -> o [R, Hv, dv]; for rows that all stay.

    state [S, Hv, dk, dv] fp32, state_slot [L], lane, position and parent [R] int32. Every lane's rows are a line, and
    its slot's state is moved on to its last row. q and k are brought to length one here, q to 1 / sqrt(dk).
    """
    o = torch.empty(v.shape, dtype=compute_dtype(v), device=v.device)
    for row in range(q.shape[0]):
        slot = int(state_slot[lane[row]])
        before = state[slot] if int(parent[row]) >= 0 else carried(state, slot, int(position[row]))
        o[row], state[slot], _, _ = _step(before, (q[row], k[row], v[row], decay[row], beta[row]))
    return o


@delta_rule.register_fake
def _(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    decay: Tensor,
    beta: Tensor,
    state: Tensor,
    state_slot: Tensor,
    lane: Tensor,
    position: Tensor,
    parent: Tensor,
) -> Tensor:
    return v.new_empty(v.shape, dtype=compute_dtype(v))


@torch.library.custom_op("tandem::delta_verify", mutates_args=("k_factor", "u_factor", "decay_factor"))
def delta_verify(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    decay: Tensor,
    beta: Tensor,
    state: Tensor,
    state_slot: Tensor,
    lane: Tensor,
    position: Tensor,
    parent: Tensor,
    k_factor: Tensor,
    u_factor: Tensor,
    decay_factor: Tensor,
    tree: bool,
) -> Tensor:
    """As `delta_rule`, for rows of which some may stay: the state is left, and what a commit replays is kept.

    k_factor [F, Hk, dk] gets the keys of length one, u_factor [F, Hv, dv] and decay_factor [F, Hv] u and decay, all
    fp32, F at least R. With `tree` a row goes on from its `parent`.
    """
    o = torch.empty(v.shape, dtype=compute_dtype(v), device=v.device)
    states: list[Tensor] = []
    for row in range(q.shape[0]):
        above = row_before(row, parent, tree)
        before = states[above] if above >= 0 else carried(state, int(state_slot[lane[row]]), int(position[row]))
        o[row], after, key, u = _step(before, (q[row], k[row], v[row], decay[row], beta[row]))
        k_factor[row], u_factor[row], decay_factor[row] = key, u, decay[row]
        states.append(after)
    return o


@delta_verify.register_fake
def _(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    decay: Tensor,
    beta: Tensor,
    state: Tensor,
    state_slot: Tensor,
    lane: Tensor,
    position: Tensor,
    parent: Tensor,
    k_factor: Tensor,
    u_factor: Tensor,
    decay_factor: Tensor,
    tree: bool,
) -> Tensor:
    return v.new_empty(v.shape, dtype=compute_dtype(v))


@torch.library.custom_op("tandem::delta_commit", mutates_args=("state",))
def delta_commit(
    k_factor: Tensor,
    u_factor: Tensor,
    decay_factor: Tensor,
    state: Tensor,
    state_slot: Tensor,
    move_lane: Tensor,
    move_row: Tensor,
    move_target: Tensor,
) -> None:
    """Moves states on by accepted rows of the last `delta_verify`: the bits that `delta_rule` of them would have left.

    Factors as `delta_verify` wrote them, state [S, Hv, dk, dv], moves [M] as in `conv_commit`.
    """
    for lane, row, target in zip(move_lane.tolist(), move_row.tolist(), move_target.tolist(), strict=True):
        slot = int(state_slot[lane])
        before = carried(state, slot, target) * decay_factor[row, :, None, None]
        state[slot] = _added(before, k_factor[row], u_factor[row])


@delta_commit.register_fake
def _(
    k_factor: Tensor,
    u_factor: Tensor,
    decay_factor: Tensor,
    state: Tensor,
    state_slot: Tensor,
    move_lane: Tensor,
    move_row: Tensor,
    move_target: Tensor,
) -> None:
    return None
