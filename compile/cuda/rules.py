"""One rule per operator: which Triton kernels it becomes, and what it takes along from its neighbours.

Knows no model and no numbers of a device: grids and tiles are chosen beside the kernels.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch.fx import Node

from tandem.compile.lowering import ITEM_BYTES
from tandem.compile.views import VIEWS, arguments, registrar, width
from tandem.kernels.cuda.attention import attention_works
from tandem.kernels.cuda.attention_chunk import attention_chunk_work
from tandem.kernels.cuda.embedding import embedding_work
from tandem.kernels.cuda.groups import num_groups
from tandem.kernels.cuda.head import argmax_chunks, argmax_gap_work, argmax_partial_work, gather_rows_work
from tandem.kernels.cuda.kv import kv_move_work, kv_write_work
from tandem.kernels.cuda.linear import linear_work
from tandem.kernels.cuda.norm import add_rms_norm_work, rms_norm_work
from tandem.kernels.cuda.rotary import rotary_kv_write_work, rotary_work
from tandem.kernels.cuda.swiglu import swiglu_work
from tandem.keys import MAX_TREE_ROWS

if TYPE_CHECKING:
    from tandem.compile.assembly import Operand
    from tandem.compile.cuda.lowering import CudaLowering

RULES: dict[Any, Any] = dict(VIEWS)
rule = registrar(RULES)
ops = torch.ops.tandem


@rule(ops.embedding.default)
def _embedding(low: CudaLowering, node: Node) -> None:
    token, weight, y = low.operand(node.args[0]), low.weight(node.args[1]), low.result(node)
    work = embedding_work(low.most[y.count], weight.shape[1])
    low.launch("embedding", work, token=token, weight=weight, count=low.count(y), y=y)


@rule(ops.linear.default)
def _linear(low: CudaLowering, node: Node) -> None:
    (reader, *others) = node.users
    if reader.target is ops.swiglu.default and not others and node.args[2] is None:
        low.wait(node, lambda: _product(low, node, low.result(node)))
    else:
        _product(low, node, low.result(node))


def _product(low: CudaLowering, node: Node, y: Operand, *, gated: bool = False) -> None:
    x, weight = low.rows(node.args[0]), low.weight(node.args[1])
    bias = None if node.args[2] is None else low.weight(node.args[2])
    n, k = weight.shape
    kernel, work = linear_work(
        n // 2 if gated else n, k, low.most[x.count], gated, ITEM_BYTES[weight.dtype], x.stride, y.stride
    )
    low.launch(kernel, work, x=x, weight=weight, bias=bias, count=low.count(x), y=y)


@rule(ops.swiglu.default)
def _swiglu(low: CudaLowering, node: Node) -> None:
    if product := low.take(node.args[0], ops.linear.default):
        return _product(low, product, low.result(node), gated=True)
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
    x, delta, weight, y = low.rows(first), low.rows(second), low.weight(scale), low.result(node, 1)
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
    )
    low.launch("add_rms_norm", work, x=x, delta=delta, weight=weight, row=row, count=low.count(y), sum=total, y=y)


@rule(ops.rotary.default)
def _rotary(low: CudaLowering, node: Node) -> None:
    def emit() -> None:
        x, cos, sin, position = low.rows(node.args[0]), *map(low.operand, node.args[1:])
        y = low.result(node)
        work = rotary_work(
            rows=low.most[x.count],
            heads=x.shape[1],
            head_dim=x.shape[2],
            half=cos.shape[1],
            x_stride=x.stride,
            y_stride=y.stride,
        )
        low.launch("rotary", work, x=x, cos=cos, sin=sin, position=position, count=low.count(x), y=y)

    low.wait(node, emit)


@rule(ops.kv_write.default)
def _kv_write(low: CudaLowering, node: Node) -> None:
    keys, values, *rest = node.args
    turned = _query_beside(keys) and low.take(keys, ops.rotary.default)
    k_cache, v_cache, lane, slot, block_table = map(low.operand, rest)
    v, k = low.rows(values), low.rows(keys.args[0] if turned else keys)
    shared = {"lane": lane, "slot": slot, "block_table": block_table, "k_cache": k_cache, "v_cache": v_cache}
    sizes = {"rows": low.most[k.count], "kv_heads": k.shape[1], "head_dim": k.shape[2]}
    sizes |= {"table_stride": low.io.geometry.blocks_per_lane, "page": low.page_elements}
    sizes |= {"k_stride": k.stride, "v_stride": v.stride}
    if not turned:
        return low.launch("kv_write", kv_write_work(**sizes), k=k, v=v, count=low.count(k), **shared)
    query = low.take(_query_beside(keys), ops.rotary.default)
    assert query is not None, "a query's rotation stands before the write of its keys"
    q, cos, sin, position = low.rows(query.args[0]), *map(low.operand, query.args[1:])
    y = low.result(query)
    work = rotary_kv_write_work(heads=q.shape[1], half=cos.shape[1], q_stride=q.stride, y_stride=y.stride, **sizes)
    low.launch(
        "rotary_kv_write", work, q=q, k=k, v=v, cos=cos, sin=sin, position=position, count=low.count(k), y=y, **shared
    )


def _query_beside(keys: Node) -> Node | None:
    """The other rotation by the same angles, whose one reader is attention."""
    if keys.target is not ops.rotary.default or len(keys.users) != 1:
        return None
    kin = [node for node in keys.args[1].users if node.target is ops.rotary.default and node is not keys]  # type: ignore[union-attr]
    alike = [node for node in kin if node.args[1:] == keys.args[1:] and len(node.users) == 1]
    return alike[0] if len(alike) == 1 else None


@rule(ops.attention.default)
def _attention(low: CudaLowering, node: Node) -> None:
    *tensors, scale, tree = arguments(node)
    q, k_cache, v_cache, position, lane, prefix, ancestor, block_table = map(low.operand, tensors)
    rows, y, count = low.most[q.count], low.result(node), low.count(q)
    heads, kv_heads, head_dim = q.shape[1], k_cache.shape[1], q.shape[2]
    g = low.io.geometry
    sizes = {"rows": rows, "heads": heads, "kv_heads": kv_heads, "head_dim": head_dim, "scale": float(scale)}
    sizes |= {"q_stride": q.stride, "table_stride": g.blocks_per_lane, "page": low.page_elements}
    sizes["itemsize"] = ITEM_BYTES[k_cache.dtype]
    cache = {"k_cache": k_cache, "v_cache": v_cache, "block_table": block_table}
    where = {"position": position, "lane": lane}
    if rows > MAX_TREE_ROWS:
        return low.launch("attention_chunk", attention_chunk_work(**sizes), q=q, count=count, y=y, **cache, **where)
    groups = num_groups(low.cover())
    parts = {name: low.buffer(q.count, heads, groups) for name in "ml"} | {
        "acc": low.buffer(q.count, heads, groups, head_dim)
    }
    (split, split_work), (fold, fold_work) = attention_works(
        context=low.cover(), tree=tree, max_lanes=g.max_lanes, **sizes
    )
    low.launch(split, split_work, q=q, prefix=prefix, count=count, **cache, **where, **parts)
    if tree:
        low.launch(fold, fold_work, q=q, prefix=prefix, ancestor=ancestor, count=count, y=y, **cache, **where, **parts)
    else:
        low.launch(fold, fold_work, position=position, count=count, y=y, **parts)


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


@rule(ops.kv_move.default)
def _kv_move(low: CudaLowering, node: Node) -> None:
    k_cache, v_cache, lane, source, target, block_table = map(low.operand, node.args)
    g = low.io.geometry
    work = kv_move_work(
        moves=low.most["moves"],
        layers=low.layers,
        layer=low.page_elements // g.num_layers,
        kv_heads=k_cache.shape[1],
        head_dim=k_cache.shape[2],
        table_stride=g.blocks_per_lane,
        page=low.page_elements,
    )
    low.launch(
        "kv_move", work, lane=lane, source=source, target=target, block_table=block_table, count=low.count(lane),
        k_cache=k_cache, v_cache=v_cache,
    )  # fmt: skip
