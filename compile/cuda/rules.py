"""One rule per operator: which Triton kernels it becomes, and what it takes along from its neighbours.

Knows no model and no numbers of a device: grids and tiles are chosen beside the kernels.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch.fx import Node

from tandem.compile.cuda.products import linear_product, whole_product
from tandem.compile.cuda.rules_attention import ATTENTION
from tandem.compile.cuda.rules_blocks import BLOCKS
from tandem.compile.cuda.rules_ends import ENDS
from tandem.compile.cuda.rules_recurrent import RECURRENT
from tandem.compile.views import VIEWS, arguments, registrar, whole_of, width
from tandem.kernels.cuda.embedding import embedding_work
from tandem.kernels.cuda.norm import rms_norm_work
from tandem.kernels.cuda.swiglu import swiglu_work

if TYPE_CHECKING:
    from tandem.compile.cuda.lowering import CudaLowering

RULES: dict[Any, Any] = ATTENTION | BLOCKS | RECURRENT | ENDS
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
    def emit() -> None:
        token, weight, y = low.operand(node.args[0]), low.weight(node.args[1]), low.result(node)
        work = embedding_work(low.most[y.count], weight.shape[1])
        low.launch("embedding", work, token=token, weight=weight, count=low.count(y), y=y)

    low.wait(node, emit)


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
    row = None
    if gather := low.take(value, ops.gather_rows.default):
        x, row = low.rows(gather.args[0]), low.operand(gather.args[1])
    elif looked_up := low.take(value, ops.embedding.default):
        x, row = low.weight(looked_up.args[1]), low.operand(looked_up.args[0])
    else:
        made = low.addends(whole_of((value,)) or value)
        x = made if made.parts > 1 else low.rows(value)
    weight, y = low.weight(scale), low.result(node)
    size = y.shape[-1]
    work = rms_norm_work(low.most[y.count], width(y) // size, size, float(eps), x.stride, y.stride, x.parts)
    low.launch("rms_norm", work, x=x, weight=weight, row=row, count=low.count(y), y=y)
