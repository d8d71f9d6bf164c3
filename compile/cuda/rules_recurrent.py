"""Rules of what hybrids have beyond a dense decoder: gates, convolution, recurrence and their commits.

Convolution and gates have no kernel of their own: they wait for the delta rule that reads them, and go into one launch
in front of it. Knows no model and no numbers of a device.
"""

from __future__ import annotations

from operator import getitem
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch.fx import Node

from tandem.compile.assembly import Operand
from tandem.compile.lowering import ITEM_BYTES
from tandem.compile.views import arguments, readers, registrar, whole_of, width
from tandem.kernels.cuda.conv import conv_tail_work
from tandem.kernels.cuda.delta import delta_rule_work, delta_verify_work
from tandem.kernels.cuda.delta_commit import conv_commit_work, delta_commit_work
from tandem.kernels.cuda.gate import gated_rms_norm_work, sigmoid_gate_work
from tandem.kernels.cuda.recurrent_inputs import FEW_ROWS, recurrent_inputs_work

if TYPE_CHECKING:
    from tandem.compile.cuda.lowering import CudaLowering

RECURRENT: dict[Any, Any] = {}
rule = registrar(RECURRENT)
ops = torch.ops.tandem


@rule(ops.sigmoid_gate.default)
def _sigmoid_gate(low: CudaLowering, node: Node) -> None:
    x, gate = map(low.rows, node.args)
    y = low.result(node)
    work = sigmoid_gate_work(low.most[x.count], width(x), x.stride, gate.stride, y.stride)
    low.launch("sigmoid_gate", work, x=x, gate=gate, count=low.count(x), y=y)


@rule(ops.gated_rms_norm.default)
def _gated_rms_norm(low: CudaLowering, node: Node) -> None:
    value, by, scale, eps, rounded = arguments(node)
    x, gate, weight, y = low.rows(value), low.rows(by), low.weight(scale), low.result(node)
    _, heads, size = x.shape
    work = gated_rms_norm_work(
        rows=low.most[x.count], heads=heads, width=size, eps=float(eps), rounded=bool(rounded), x_stride=x.stride,
        gate_stride=gate.stride, y_stride=y.stride,
    )  # fmt: skip
    low.launch("gated_rms_norm", work, x=x, gate=gate, weight=weight, count=low.count(x), y=y)


@rule(ops.delta_gates.default, ops.causal_conv.default, ops.conv_verify.default)
def _input(low: CudaLowering, node: Node) -> None:
    def refuse() -> None:
        raise low.refusal(f"{node.name} has no kernel but beside the one delta rule that reads it")

    if len(readers(node)) != 1:
        refuse()
    low.wait(node, refuse)


class _Inputs(NamedTuple):
    """What a delta rule reads: a convolution whose columns are q, k and v, and gates, both waiting."""

    conv: Node
    gates: Node

    @classmethod
    def take(cls, low: CudaLowering, node: Node, conv: Any) -> _Inputs:
        """Takes them; LoweringError where they are not all that `node` reads, or are of other rows."""
        q, k, v, decay, beta, _, *where = arguments(node)[:10]
        found = cls._of((q, k, v), decay, beta)
        alike = found and q.meta["val"].shape == k.meta["val"].shape and arguments(found.conv)[3:7] == where
        if found and alike and low.take(found.conv, conv) and low.take(found.gates, ops.delta_gates.default):
            return found
        raise low.refusal("reads no convolution's q, k and v and no gates of its own")

    @classmethod
    def _of(cls, parts: tuple[Any, ...], decay: Any, beta: Any) -> _Inputs | None:
        """What all of `parts` show columns of, in order and no others, and what both gates are of."""
        conv = whole_of(parts)
        if conv is None or decay.target is not getitem or beta.target is not getitem:
            return None
        (gates, which), (other, second) = arguments(decay), arguments(beta)
        return cls(conv, gates) if gates is other and (which, second) == (0, 1) else None


def _where(low: CudaLowering, node: Node) -> dict[str, Operand]:
    names = ("state_slot", "lane", "position", "parent")
    return dict(zip(names, map(low.operand, node.args[6:10]), strict=True))


def _slot(low: CudaLowering, slots: Operand) -> int:
    """Elements from slot to slot."""
    return low.io.geometry.state_bytes // ITEM_BYTES[slots.dtype]


def _prepare(low: CudaLowering, node: Node, taken: _Inputs, kept: dict[str, Operand], *, tree: bool) -> None:
    """The launch in front of delta rule `node`. `kept` are a verify's factors; without, tails are moved on."""
    value, taps, slots, *_ = arguments(taken.conv)
    x, weight, tail, where = low.rows(value), low.weight(taps), low.operand(slots), _where(low, node)
    (a, b), (a_log, dt_bias) = map(low.rows, taken.gates.args[:2]), map(low.weight, taken.gates.args[2:])
    if a.stride != b.stride or {x.dtype, a.dtype, b.dtype} != {"fp32"}:
        raise low.refusal("its gates are columns of two products, or its inputs were rounded")
    y, decay, beta = low.result(taken.conv), kept.get("decay"), low.result(taken.gates, 1)
    _, key_heads, dk = arguments(node)[0].meta["val"].shape
    rows, channels, slot, count = low.most[x.count], width(x), _slot(low, tail), low.count(x)
    work = recurrent_inputs_work(
        rows=rows, verify=bool(kept), tree=tree, width=tail.shape[1] + 1, key_heads=key_heads, dk=dk,
        channels=channels, heads=width(a), x_stride=x.stride, ab_stride=a.stride, slot=slot,
    )  # fmt: skip
    low.launch(
        "recurrent_inputs", work, x=x, weight=weight, a=a, b=b, a_log=a_log, dt_bias=dt_bias, tail=tail, count=count,
        raw=kept.get("raw"), k_factor=kept.get("k_factor"), decay=decay or low.result(taken.gates, 0), beta=beta, y=y,
        **where,
    )  # fmt: skip
    if not kept and rows > FEW_ROWS:
        work = conv_tail_work(rows=rows, channels=channels, width=tail.shape[1] + 1, x_stride=x.stride, slot=slot)
        low.launch("conv_tail", work, x=x, tail=tail, count=count, **where)


def _sizes(low: CudaLowering, node: Node, state: Operand) -> dict[str, Any]:
    """What both works of the delta rule are told; strides are those of values that lie in rows of one product."""
    q, v, y = low.rows(node.args[0]), low.rows(node.args[2]), low.result(node)
    heads, dk, dv = state.shape[1:]
    return {
        "rows": low.most[q.count], "lanes": low.io.geometry.max_lanes, "key_heads": q.shape[1], "heads": heads,
        "dk": dk, "dv": dv, "q_stride": q.stride, "k_stride": q.stride, "v_stride": v.stride, "y_stride": y.stride,
        "slot": _slot(low, state),
    }  # fmt: skip


@rule(ops.delta_rule.default)
def _delta_rule(low: CudaLowering, node: Node) -> None:
    _prepare(low, node, _Inputs.take(low, node, ops.causal_conv.default), {}, tree=False)
    q, k, v, decay, beta = map(low.rows, node.args[:5])
    state, where = low.operand(node.args[5]), _where(low, node)
    del where["parent"]
    low.launch(
        "delta_rule", delta_rule_work(**_sizes(low, node, state)), q=q, k=k, v=v, decay=decay, beta=beta, state=state,
        count=low.count(q), y=low.result(node), **where,
    )  # fmt: skip


@rule(ops.delta_verify.default)
def _delta_verify(low: CudaLowering, node: Node) -> None:
    """Keys and decays go straight to the factors, and are read there."""
    k, u, decay = map(low.operand, node.args[10:13])
    tree = bool(arguments(node)[13])
    taken = _Inputs.take(low, node, ops.conv_verify.default)
    raw = low.operand(taken.conv.args[7])
    _prepare(low, node, taken, {"raw": raw, "k_factor": k, "decay": decay}, tree=tree)
    q, v, beta = (low.rows(node.args[i]) for i in (0, 2, 4))
    state = low.operand(node.args[5])
    work = delta_verify_work(tree=tree, **_sizes(low, node, state) | {"k_stride": width(k)})
    low.launch(
        "delta_verify", work, q=q, k=k, v=v, decay=decay, beta=beta, state=state, u_factor=u, count=low.count(q),
        y=low.result(node), **_where(low, node),
    )  # fmt: skip


def _moves(low: CudaLowering, nodes: Any) -> dict[str, Operand]:
    names = ("state_slot", "move_lane", "move_row", "move_target")
    moves = dict(zip(names, map(low.operand, nodes), strict=True))
    return moves | {"count": low.count(moves["move_row"])}


@rule(ops.conv_commit.default)
def _conv_commit(low: CudaLowering, node: Node) -> None:
    """All layers at once: operands are those of the first."""
    raw, tail = map(low.operand, node.args[:2])
    g = low.io.geometry
    work = conv_commit_work(
        moves=low.most["moves"], layers=g.recurrent_layers, lanes=g.max_lanes, channels=width(raw),
        width=tail.shape[1] + 1, raw_layer=g.factor_bytes // g.recurrent_layers // ITEM_BYTES[raw.dtype],
        layer=width(tail), slot=_slot(low, tail),
    )  # fmt: skip
    low.launch("conv_commit", work, raw=raw, tail=tail, **_moves(low, node.args[2:]))


@rule(ops.delta_commit.default)
def _delta_commit(low: CudaLowering, node: Node) -> None:
    """All layers at once, as above."""
    k, u, decay, state = map(low.operand, node.args[:4])
    g, (heads, dk, dv) = low.io.geometry, state.shape[1:]
    layer = g.factor_bytes // g.recurrent_layers // ITEM_BYTES[k.dtype]
    work = delta_commit_work(
        layers=g.recurrent_layers, key_heads=k.shape[1], heads=heads, dk=dk, dv=dv, k_layer=layer, u_layer=layer,
        decay_layer=layer, layer=width(state), slot=_slot(low, state),
    )  # fmt: skip
    low.launch(
        "delta_commit", work, k_factor=k, u_factor=u, decay_factor=decay, state=state, **_moves(low, node.args[4:])
    )
