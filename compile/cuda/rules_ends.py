"""Rules of where passes end: norms behind the residual add, rows picked for the head, rows left for a drafter, choices.

Knows no model and no numbers of a device.
"""

from __future__ import annotations

from operator import getitem
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch.fx import Node

from tandem.compile.views import arguments, readers, registrar, width
from tandem.kernels.cuda.head import (
    argmax_chunks,
    argmax_gap_work,
    argmax_partial_work,
    gather_rows_work,
    scatter_rows_work,
    scatter_sum_work,
)
from tandem.kernels.cuda.norm import add_rms_norm_taps_work, add_rms_norm_work
from tandem.kernels.cuda.top_k import top_k_chunks, top_k_partial_work, top_k_work

if TYPE_CHECKING:
    from tandem.compile.cuda.lowering import CudaLowering

ENDS: dict[Any, Any] = {}
rule = registrar(ENDS)
ops = torch.ops.tandem


@rule(ops.gather_rows.default)
def _gather_rows(low: CudaLowering, node: Node) -> None:
    def emit() -> None:
        x, row, y = low.rows(node.args[0]), low.operand(node.args[1]), low.result(node)
        work = gather_rows_work(low.most[y.count], width(x), x.stride)
        low.launch("gather_rows", work, x=x, row=row, count=low.count(y), y=y)

    low.wait(node, emit)


@rule(ops.scatter_rows.default)
def _scatter_rows(low: CudaLowering, node: Node) -> None:
    x, ring, tap_out = low.rows(node.args[0]), low.operand(node.args[1]), low.operand(node.args[2])
    work = scatter_rows_work(low.most[x.count], width(x), x.stride, ring.stride)
    low.launch("scatter_rows", work, x=x, tap_out=tap_out, count=low.count(x), ring=ring)


@rule(ops.scatter_sum.default)
def _scatter_sum(low: CudaLowering, node: Node) -> None:
    x, delta, (ring, tap_out) = low.rows(node.args[0]), low.addends(node.args[1]), map(low.operand, node.args[2:])
    work = scatter_sum_work(
        rows=low.most[x.count], width=width(x), x_stride=x.stride, delta_stride=delta.stride, ring_stride=ring.stride,
        parts=delta.parts,
    )  # fmt: skip
    low.launch("scatter_sum", work, x=x, delta=delta, tap_out=tap_out, count=low.count(x), ring=ring)


class _Ends(NamedTuple):
    """What reads a norm of all rows of a pass, and nothing else does: a ring takes them, a head takes some."""

    scatter: Node
    gather: Node

    @classmethod
    def of(cls, node: Node) -> _Ends | None:
        """Those of the norm `node`, whose sum nobody may read."""
        scatters, gathers = (
            [reader for reader in readers(node) if reader.target is target]
            for target in (ops.scatter_rows.default, ops.gather_rows.default)
        )
        if len(readers(node)) != 2 or len(scatters) != 1 or len(gathers) != 1:
            return None
        found = cls(scatters[0], gathers[0])
        sources = [arguments(end)[0] for end in found]
        normed = all(source.target is getitem and source.args == (node, 1) for source in sources)
        return found if normed else None


@rule(ops.add_rms_norm.default)
def _add_rms_norm(low: CudaLowering, node: Node) -> None:
    first, second, scale, eps = arguments(node)
    if ends := _Ends.of(node):
        return _norm_ends(low, node, ends)
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


def _norm_ends(low: CudaLowering, node: Node, ends: _Ends) -> None:
    """A norm, the rows of it that are picked and those that are left in a ring, all in one launch."""
    first, second, scale, eps = arguments(node)
    ring, tap_out = map(low.operand, ends.scatter.args[1:])
    x, delta, weight, y = low.rows(first), low.addends(second), low.weight(scale), low.result(ends.gather)
    work = add_rms_norm_taps_work(
        rows=low.most[x.count], outputs=low.most[y.count], width=width(x), eps=float(eps), x_stride=x.stride,
        delta_stride=delta.stride, y_stride=y.stride, ring_stride=ring.stride, parts=delta.parts,
    )  # fmt: skip
    low.launch(
        "add_rms_norm_taps", work, x=x, delta=delta, weight=weight, row=low.operand(ends.gather.args[1]),
        count=low.count(y), tap_out=tap_out, num_rows=low.count(x), y=y, ring=ring,
    )  # fmt: skip
    low.done(*ends)


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


@rule(ops.top_k.default)
def _top_k(low: CudaLowering, node: Node) -> None:
    value, top = arguments(node)
    logits = low.rows(value)
    rows, size, count = low.most[logits.count], width(logits), low.count(logits)
    chunks = top_k_chunks(size)
    first = low.buffer(logits.count, chunks, top, dtype="int64")
    peak, sums = (low.buffer(logits.count, chunks) for _ in range(2))
    found = {"first": first, "peak": peak, "sum": sums}
    low.launch("top_k_partial", top_k_partial_work(rows, size, logits.stride, top), logits=logits, count=count, **found)
    token, logit, lse = (low.result(node, i) for i in range(3))
    work = top_k_work(rows, size, logits.stride, top)
    low.launch("top_k", work, logits=logits, count=count, token=token, logit=logit, lse=lse, **found)
