"""One rule per operator: which kernel of the C++ library it becomes.

Knows no model. A rule refuses what its kernel would compute differently.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.fx import Node

from tandem.compile.cpu.rules_blocks import BLOCKS
from tandem.compile.cpu.rules_recurrent import RECURRENT
from tandem.compile.lowering import Lowering, Rule
from tandem.compile.views import VIEWS, arguments, registrar, width

RULES: dict[Any, Rule] = VIEWS | RECURRENT | BLOCKS
rule = registrar(RULES)


@rule(torch.ops.aten.add.Tensor, torch.ops.aten.mul.Tensor)
def _binary(low: Lowering, node: Node) -> None:
    x, z = map(low.rows, node.args)
    if x.shape != z.shape:
        raise low.refusal(f"{x.shape} with {z.shape} broadcasts; only equal shapes have a lowering")
    y, name = low.result(node), "add" if node.target is torch.ops.aten.add.Tensor else "mul"
    low.assembly.launch(
        name, count=low.count(x), x=x, x_stride=x.stride, z=z, z_stride=z.stride, y=y, y_stride=y.stride,
        width=width(x),
    )  # fmt: skip


@rule(torch.ops.tandem.embedding.default)
def _embedding(low: Lowering, node: Node) -> None:
    token, weight = low.operand(node.args[0]), low.weight(node.args[1])
    y = low.result(node)
    low.assembly.launch(
        f"embedding_{weight.dtype}", count=low.count(y), token=token, weight=weight, y=y, y_stride=y.stride,
        k=weight.shape[1],
    )  # fmt: skip


@rule(torch.ops.tandem.linear.default)
def _linear(low: Lowering, node: Node) -> None:
    x, weight = low.rows(node.args[0]), low.weight(node.args[1])
    bias = None if node.args[2] is None else low.weight(node.args[2])
    y, (n, k) = low.result(node), weight.shape
    low.assembly.launch(
        f"linear_{weight.dtype}", count=low.count(x), x=x, x_stride=x.stride, delta=None, delta_stride=0, norm=None,
        eps=0.0, sum=None, sum_stride=0, weight=weight, bias=bias, y=y, y_stride=y.stride, n=n, k=k, gated=0,
    )  # fmt: skip


@rule(torch.ops.tandem.rms_norm.default)
def _rms_norm(low: Lowering, node: Node) -> None:
    value, scale, eps = arguments(node)
    x, weight, y = low.rows(value), low.weight(scale), low.result(node)
    low.assembly.launch(
        "rms_norm", count=low.count(x), x=x, x_stride=x.stride, weight=weight, y=y, y_stride=y.stride,
        groups=width(x) // x.shape[-1], width=x.shape[-1], eps=float(eps),
    )  # fmt: skip


@rule(torch.ops.tandem.add_rms_norm.default)
def _add_rms_norm(low: Lowering, node: Node) -> None:
    first, second, scale, eps = arguments(node)
    x, delta, weight = low.rows(first), low.rows(second), low.weight(scale)
    total, y = low.result(node, 0), low.result(node, 1)
    low.assembly.launch(
        "add_rms_norm", count=low.count(x), x=x, x_stride=x.stride, delta=delta, delta_stride=delta.stride,
        weight=weight, sum=total, sum_stride=total.stride, y=y, y_stride=y.stride, width=width(x),
        eps=float(eps),
    )  # fmt: skip


@rule(torch.ops.tandem.rotary.default)
def _rotary(low: Lowering, node: Node) -> None:
    x, cos, sin, position = low.rows(node.args[0]), *map(low.operand, node.args[1:])
    y = low.result(node)
    low.assembly.launch(
        "rotary", count=low.count(x), x=x, x_stride=x.stride, cos=cos, sin=sin, position=position, y=y,
        y_stride=y.stride, heads=x.shape[1], head_dim=x.shape[2], half=cos.shape[1],
    )  # fmt: skip


@rule(torch.ops.tandem.kv_write.default)
def _kv_write(low: Lowering, node: Node) -> None:
    k, v, k_cache, v_cache, lane, slot, block_table = map(low.operand, node.args)
    low.assembly.launch(
        f"kv_write_{k_cache.dtype}", count=low.count(k), k=k, k_stride=k.stride, v=v, v_stride=v.stride,
        k_cache=k_cache, v_cache=v_cache, lane=lane, slot=slot, block_table=block_table, **low.cache(k_cache),
    )  # fmt: skip


@rule(torch.ops.tandem.attention.default)
def _attention(low: Lowering, node: Node) -> None:
    *tensors, scale, tree = arguments(node)
    q, k_cache, v_cache, position, lane, prefix, ancestor, block_table = map(low.operand, tensors)
    y = low.result(node)
    low.assembly.launch(
        f"attention_{'tree_' if tree else ''}{k_cache.dtype}", count=low.count(q), q=q, q_stride=q.stride,
        k_cache=k_cache, v_cache=v_cache, position=position, lane=lane, prefix=prefix, ancestor=ancestor,
        ancestor_stride=ancestor.shape[1], block_table=block_table, y=y, y_stride=y.stride, heads=q.shape[1],
        scale=float(scale), **low.cache(k_cache),
    )  # fmt: skip


@rule(torch.ops.tandem.swiglu.default)
def _swiglu(low: Lowering, node: Node) -> None:
    x, y = low.rows(node.args[0]), low.result(node)
    low.assembly.launch("swiglu", count=low.count(x), x=x, x_stride=x.stride, y=y, y_stride=y.stride, width=width(y))


@rule(torch.ops.tandem.gather_rows.default)
def _gather_rows(low: Lowering, node: Node) -> None:
    x, row = low.rows(node.args[0]), low.operand(node.args[1])
    y = low.result(node)
    low.assembly.launch(
        "gather_rows", count=low.count(y), x=x, x_stride=x.stride, row=row, y=y, y_stride=y.stride, width=width(x)
    )


@rule(torch.ops.tandem.scatter_rows.default)
def _scatter_rows(low: Lowering, node: Node) -> None:
    x, ring, row = low.rows(node.args[0]), *map(low.operand, node.args[1:])
    low.assembly.launch(
        "scatter_rows", count=low.count(x), x=x, x_stride=x.stride, ring=ring, tap_out=row, width=width(x)
    )


@rule(torch.ops.tandem.scatter_sum.default)
def _scatter_sum(low: Lowering, node: Node) -> None:
    x, delta, ring, row = *map(low.rows, node.args[:2]), *map(low.operand, node.args[2:])
    low.assembly.launch(
        "scatter_sum", count=low.count(x), x=x, x_stride=x.stride, delta=delta, delta_stride=delta.stride, ring=ring,
        ring_stride=ring.stride, tap_out=row, width=width(x),
    )  # fmt: skip


@rule(torch.ops.tandem.top_k.default)
def _top_k(low: Lowering, node: Node) -> None:
    value, top = arguments(node)
    logits = low.rows(value)
    token, logit, lse = (low.result(node, i) for i in range(3))
    low.assembly.launch(
        "top_k", count=low.count(logits), logits=logits, logits_stride=logits.stride, draft_token=token,
        draft_logit=logit, draft_lse=lse, width=width(logits), top=top,
    )  # fmt: skip


@rule(torch.ops.tandem.argmax_gap.default)
def _argmax_gap(low: Lowering, node: Node) -> None:
    logits = low.rows(node.args[0])
    low.assembly.launch(
        "argmax_gap", count=low.count(logits), logits=logits, logits_stride=logits.stride,
        argmax=low.result(node, 0), gap=low.result(node, 1), width=width(logits),
    )  # fmt: skip


@rule(torch.ops.tandem.kv_move.default)
def _kv_move(low: Lowering, node: Node) -> None:
    k_cache, v_cache, lane, source, target, block_table = map(low.operand, node.args)
    low.assembly.launch(
        f"kv_move_{k_cache.dtype}", count=low.count(lane), k_cache=k_cache, v_cache=v_cache, lane=lane, source=source,
        target=target, block_table=block_table, **low.cache(k_cache),
    )  # fmt: skip
