"""One rule per operator: which Triton kernels it becomes, and what it takes along from its neighbours.

Knows no model and no numbers of a device: grids and tiles are chosen beside the kernels.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch.fx import Node

from tandem.compile.cuda.products import linear_product, whole_product
from tandem.compile.cuda.rules_attention import ATTENTION
from tandem.compile.cuda.rules_recurrent import RECURRENT
from tandem.compile.views import VIEWS, arguments, registrar, width
from tandem.kernels.cuda.embedding import embedding_work
from tandem.kernels.cuda.head import argmax_chunks, argmax_gap_work, argmax_partial_work, gather_rows_work
from tandem.kernels.cuda.norm import add_rms_norm_work, rms_norm_work
from tandem.kernels.cuda.swiglu import swiglu_work

if TYPE_CHECKING:
    from tandem.compile.cuda.lowering import CudaLowering

RULES: dict[Any, Any] = ATTENTION | RECURRENT
rule = registrar(RULES)
ops = torch.ops.tandem


@rule(*VIEWS)
def _view(low: CudaLowering, node: Node) -> None:
    """A view of what waits waits with it, until somebody reads through it."""

    def emit() -> None:
        VIEWS[node.target](low, node)

    if low.waits(node.args[0]):
        low.wait(node, emit)
    else:
        emit()


@rule(ops.embedding.default)
def _embedding(low: CudaLowering, node: Node) -> None:
    token, weight, y = low.operand(node.args[0]), low.weight(node.args[1]), low.result(node)
    work = embedding_work(low.most[y.count], weight.shape[1])
    low.launch("embedding", work, token=token, weight=weight, count=low.count(y), y=y)


@rule(ops.linear.default)
def _linear(low: CudaLowering, node: Node) -> None:
    def emit() -> None:
        linear_product(low, node)

    (reader, *others) = node.users
    gated = reader.target is ops.swiglu.default and not others and node.args[2] is None
    if gated or all(user.target in VIEWS for user in node.users):
        low.wait(node, emit)
    else:
        emit()


@rule(ops.swiglu.default)
def _swiglu(low: CudaLowering, node: Node) -> None:
    if product := low.take(node.args[0], ops.linear.default):
        return whole_product(low, product, node, gated=True)
    x, y = low.rows(node.args[0]), low.result(node)
    work = swiglu_work(low.most[x.count], width(y), x.stride)
    low.launch("swiglu", work, x=x, count=low.count(x), y=y)


@rule(ops.rms_norm.default)
def _rms_norm(low: CudaLowering, node: Node) -> None:
    value, scale, eps = arguments(node)
    x, weight, y = low.rows(value), low.weight(scale), low.result(node)
    groups = width(x) // x.shape[-1]
    work = rms_norm_work(low.most[x.count], groups, x.shape[-1], float(eps), x.stride, y.stride)
    low.launch("rms_norm", work, x=x, weight=weight, count=low.count(x), y=y)


@rule(ops.gather_rows.default)
def _gather_rows(low: CudaLowering, node: Node) -> None:
    def emit() -> None:
        x, row, y = low.rows(node.args[0]), low.operand(node.args[1]), low.result(node)
        work = gather_rows_work(low.most[y.count], width(x), x.stride)
        low.launch("gather_rows", work, x=x, row=row, count=low.count(y), y=y)

    low.wait(node, emit)


@rule(ops.add_rms_norm.default)
def _add_rms_norm(low: CudaLowering, node: Node) -> None:
    first, second, scale, eps = arguments(node)
    row = None
    if first.args[1:] == second.args[1:] and low.take_all((first, second), ops.gather_rows.default):
        row, (first, second) = low.operand(first.args[1]), (first.args[0], second.args[0])
    x, delta, weight, y = low.rows(first), low.addends(second), low.weight(scale), low.result(node, 1)
    read = any(user.args[1] == 0 and user.users for user in node.users)
    total = low.result(node, 0) if read else None
    work = add_rms_norm_work(
        low.most[y.count],
        width(x),
        float(eps),
        x.stride,
        delta.stride,
        total.stride if total else 0,
        y.stride,
        delta.parts,
    )
    low.launch("add_rms_norm", work, x=x, delta=delta, weight=weight, row=row, count=low.count(y), sum=total, y=y)


@rule(ops.argmax_gap.default)
def _argmax_gap(low: CudaLowering, node: Node) -> None:
    logits = low.rows(node.args[0])
    rows, size, count = low.most[logits.count], width(logits), low.count(logits)
    chunks = argmax_chunks(size)
    value, second = (low.buffer(logits.count, chunks) for _ in range(2))
    index = low.buffer(logits.count, chunks, dtype="int32")
    partial = argmax_partial_work(rows, size, logits.stride)
    low.launch("argmax_partial", partial, logits=logits, count=count, value=value, second=second, index=index)
    argmax, gap = low.result(node, 0), low.result(node, 1)
    whole = argmax_gap_work(rows, size)
    low.launch("argmax_gap", whole, value=value, second=second, index=index, count=count, argmax=argmax, gap=gap)
