"""The launch of a linear: in parts where its weight's shape asks for them, whole where its reader does.

Whether a linear is split is the same in every program of a bundle, or rows would have other bits in a step than in
prefill: the graph and the shape decide, never the row bucket.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch.fx import Node

from tandem.compile.lowering import ITEM_BYTES
from tandem.kernels.cuda.linear import linear_work
from tandem.kernels.cuda.linear_tiles import MAX_FEW_ROWS
from tandem.kernels.cuda.parts import splits

if TYPE_CHECKING:
    from tandem.compile.assembly import Operand
    from tandem.compile.cuda.lowering import CudaLowering


def linear_product(low: CudaLowering, node: Node) -> None:
    """Launches the linear `node` into its own result, in parts where few rows meet a weight that is split."""
    n, k = low.weight(node.args[1]).shape
    parts = splits(n, k)
    if parts > 1 and low.most[low.rows(node.args[0]).count] <= MAX_FEW_ROWS:
        y = low.in_parts(node, parts)
        _launch(low, node, y, parts)
        low.keep(node, y)
    else:
        _launch(low, node, low.result(node), parts)


def whole_product(low: CudaLowering, node: Node, result: Node, *, gated: bool = False) -> None:
    """Launches the linear `node` with K as one part, whatever its shape, into the result of `result`."""
    _launch(low, node, low.result(result), 1, gated=gated)


def _launch(low: CudaLowering, node: Node, y: Operand, parts: int, *, gated: bool = False) -> None:
    x, weight = low.rows(node.args[0]), low.weight(node.args[1])
    bias = None if node.args[2] is None else low.weight(node.args[2])
    n, k = weight.shape
    kernel, work = linear_work(
        n // 2 if gated else n, k, low.most[x.count], gated, ITEM_BYTES[weight.dtype], x.stride, y.stride, parts
    )
    low.launch(kernel, work, x=x, weight=weight, bias=bias, count=low.count(x), y=y)
