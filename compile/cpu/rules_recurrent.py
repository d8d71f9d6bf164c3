"""Rules of what hybrids have beyond a dense decoder: gates, convolution, recurrence and their commits.

Knows no model. A layer's part of a slot is an address in the first slot; kernels go on by the bytes of a slot.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.fx import Node

from tandem.compile.assembly import Argument, Operand
from tandem.compile.lowering import ITEM_BYTES, Lowering, Rule
from tandem.compile.views import arguments, registrar, width
from tandem.kernels.delta import EPSILON

RECURRENT: dict[Any, Rule] = {}
rule = registrar(RECURRENT)


@rule(torch.ops.tandem.sigmoid_gate.default)
def _sigmoid_gate(low: Lowering, node: Node) -> None:
    x, gate = map(low.rows, node.args)
    y = low.result(node)
    low.assembly.launch(
        "sigmoid_gate", count=low.count(x), x=x, x_stride=x.stride, z=gate, z_stride=gate.stride, y=y,
        y_stride=y.stride, width=width(x),
    )  # fmt: skip


@rule(torch.ops.tandem.gated_rms_norm.default)
def _gated_rms_norm(low: Lowering, node: Node) -> None:
    value, by, scale, eps, rounded = arguments(node)
    x, gate, weight, y = low.rows(value), low.rows(by), low.weight(scale), low.result(node)
    low.assembly.launch(
        "gated_rms_norm", count=low.count(x), x=x, x_stride=x.stride, gate=gate, gate_stride=gate.stride,
        weight=weight, y=y, y_stride=y.stride, groups=x.shape[1], width=x.shape[2], eps=float(eps),
        rounded=int(rounded),
    )  # fmt: skip


@rule(torch.ops.tandem.delta_gates.default)
def _delta_gates(low: Lowering, node: Node) -> None:
    a, b = map(low.rows, node.args[:2])
    a_log, dt_bias = map(low.weight, node.args[2:])
    decay, beta = low.result(node, 0), low.result(node, 1)
    low.assembly.launch(
        "delta_gates", count=low.count(a), a=a, a_stride=a.stride, b=b, b_stride=b.stride, a_log=a_log,
        dt_bias=dt_bias, decay=decay, decay_stride=decay.stride, beta=beta, beta_stride=beta.stride, heads=a.shape[1],
    )  # fmt: skip


def _where(low: Lowering, nodes: list[Any]) -> dict[str, Argument]:
    """What both kernels are told of rows and slots."""
    names = ("state_slot", "lane", "position", "parent")
    return {"slot_bytes": low.io.geometry.state_bytes} | dict(zip(names, map(low.operand, nodes), strict=True))


def _conv(low: Lowering, node: Node, kernel: str, more: dict[str, Argument]) -> None:
    value, taps, slots, *where = node.args[:7]
    x, weight, tail, y = low.rows(value), low.weight(taps), low.operand(slots), low.result(node)
    low.assembly.launch(
        kernel, count=low.count(x), x=x, x_stride=x.stride, weight=weight, tail=tail, y=y, y_stride=y.stride,
        channels=width(x), taps=tail.shape[1] + 1, **_where(low, where), **more,
    )  # fmt: skip


@rule(torch.ops.tandem.causal_conv.default)
def _causal_conv(low: Lowering, node: Node) -> None:
    _conv(low, node, "causal_conv", {})


@rule(torch.ops.tandem.conv_verify.default)
def _conv_verify(low: Lowering, node: Node) -> None:
    raw, tree = arguments(node)[7:]
    _conv(low, node, "conv_verify", {"raw": low.operand(raw), "tree": int(tree)})


def _delta(low: Lowering, node: Node, kernel: str, more: dict[str, Argument]) -> None:
    *values, slots = node.args[:6]
    q, k, v, decay, beta = map(low.rows, values)
    y, state = low.result(node), low.operand(slots)
    low.assembly.launch(
        kernel, count=low.count(q), q=q, q_stride=q.stride, k=k, k_stride=k.stride, v=v, v_stride=v.stride,
        decay=decay, decay_stride=decay.stride, beta=beta, beta_stride=beta.stride, state=state, y=y,
        y_stride=y.stride, eps=EPSILON, **_heads(q.shape[1], state), **_where(low, list(node.args[6:10])), **more,
    )  # fmt: skip


def _heads(key_heads: int, state: Operand) -> dict[str, Argument]:
    value_heads, key_dim, value_dim = state.shape[1:]
    return {"key_heads": key_heads, "value_heads": value_heads, "key_dim": key_dim, "value_dim": value_dim}


@rule(torch.ops.tandem.delta_rule.default)
def _delta_rule(low: Lowering, node: Node) -> None:
    _delta(low, node, "delta_rule", {})


@rule(torch.ops.tandem.delta_verify.default)
def _delta_verify(low: Lowering, node: Node) -> None:
    k, u, decay, tree = arguments(node)[10:]
    factors = {"k_factor": low.operand(k), "u_factor": low.operand(u), "decay_factor": low.operand(decay)}
    _delta(low, node, "delta_verify", factors | {"tree": int(tree)})


def _moves(low: Lowering, nodes: list[Any], slots: Operand) -> dict[str, Argument]:
    """Moves of a commit, of all recurrent layers at once: operands are those of the first."""
    names = ("state_slot", "move_lane", "move_row", "move_target")
    moves = dict(zip(names, map(low.operand, nodes), strict=True))
    g = low.io.geometry
    return {
        "count": low.count(moves["move_row"]), **moves, "slot_bytes": g.state_bytes, "layers": g.recurrent_layers,
        "slot_layer_bytes": ITEM_BYTES[slots.dtype] * width(slots),
        "factor_layer_bytes": g.factor_bytes // g.recurrent_layers,
    }  # fmt: skip


@rule(torch.ops.tandem.conv_commit.default)
def _conv_commit(low: Lowering, node: Node) -> None:
    raw, tail = map(low.operand, node.args[:2])
    low.assembly.launch(
        "conv_commit", raw=raw, tail=tail, channels=width(raw), taps=tail.shape[1] + 1,
        **_moves(low, list(node.args[2:]), tail),
    )  # fmt: skip


@rule(torch.ops.tandem.delta_commit.default)
def _delta_commit(low: Lowering, node: Node) -> None:
    k, u, decay, state = map(low.operand, node.args[:4])
    low.assembly.launch(
        "delta_commit", k_factor=k, u_factor=u, decay_factor=decay, state=state, **_heads(k.shape[1], state),
        **_moves(low, list(node.args[4:]), state),
    )  # fmt: skip
