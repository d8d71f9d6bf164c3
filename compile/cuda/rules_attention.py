"""Rules for attention and what feeds it: rotations, the cache's writes and moves, and the product that makes q, k, v.

Knows no model and no numbers of a device.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch.fx import Node

from tandem.compile.cuda.products import whole_product
from tandem.compile.lowering import ITEM_BYTES
from tandem.compile.views import arguments, readers, registrar, whole_of
from tandem.kernels.cuda.attention import attention_works
from tandem.kernels.cuda.attention_chunk import attention_chunk_work
from tandem.kernels.cuda.groups import num_groups
from tandem.kernels.cuda.kv import kv_move_work, kv_write_work
from tandem.kernels.cuda.linear_rotary import can_fuse, linear_rotary_work
from tandem.kernels.cuda.linear_tiles import MAX_FEW_ROWS
from tandem.kernels.cuda.rotary import rotary_kv_write_work, rotary_work
from tandem.keys import MAX_TREE_ROWS

if TYPE_CHECKING:
    from tandem.compile.cuda.lowering import CudaLowering

ATTENTION: dict[Any, Any] = {}
rule = registrar(ATTENTION)
ops = torch.ops.tandem


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
    keys, values, *rest = arguments(node)
    k_cache, v_cache, lane, slot, block_table = map(low.operand, rest)
    shared = {"lane": lane, "slot": slot, "block_table": block_table, "k_cache": k_cache, "v_cache": v_cache}
    _, kv_heads, head_dim = keys.meta["val"].shape
    sizes: dict[str, Any] = {"rows": low.most["rows"], "kv_heads": kv_heads, "head_dim": head_dim}
    sizes |= {"table_stride": low.io.geometry.blocks_per_lane, "page": low.page(k_cache)}
    query = _query_beside(keys)
    if query is None or not low.take_all((keys, query), ops.rotary.default):
        k, v = low.rows(keys), low.rows(values)
        work = kv_write_work(k_stride=k.stride, v_stride=v.stride, **sizes)
        return low.launch("kv_write", work, k=k, v=v, count=low.count(k), **shared)
    (cos, sin, position), y = map(low.operand, query.args[1:]), low.result(query)
    shared |= {"cos": cos, "sin": sin, "position": position, "y": y}
    sizes |= {"heads": y.shape[1], "half": cos.shape[1], "y_stride": y.stride}
    product = _take_product(low, query, node, cos.shape[1])
    if product and low.most["rows"] > MAX_FEW_ROWS:
        whole_product(low, product, product)
    elif product:
        x, weight = low.rows(product.args[0]), low.weight(product.args[1])
        bias = None if product.args[2] is None else low.weight(product.args[2])
        work = linear_rotary_work(k=weight.shape[1], itemsize=ITEM_BYTES[weight.dtype], x_stride=x.stride, **sizes)
        return low.launch("linear_rotary", work, x=x, weight=weight, bias=bias, count=low.count(x), **shared)
    q, k, v = map(low.rows, (query.args[0], keys.args[0], values))
    work = rotary_kv_write_work(q_stride=q.stride, k_stride=k.stride, v_stride=v.stride, **sizes)
    low.launch("rotary_kv_write", work, q=q, k=k, v=v, count=low.count(k), **shared)


def _query_beside(keys: Any) -> Node | None:
    """The other rotation by the same angles, whose one reader is attention."""
    if keys.target is not ops.rotary.default or len(keys.users) != 1:
        return None
    kin = [node for node in keys.args[1].users if node.target is ops.rotary.default and node is not keys]
    alike = [node for node in kin if node.args[1:] == keys.args[1:] and len(node.users) == 1]
    return alike[0] if len(alike) == 1 else None


def _take_product(low: CudaLowering, query: Node, write: Node, half: int) -> Node | None:
    """The waiting product whose columns are q, k and v, in this order and all of them, if nobody else reads it.

    Also where there are too many rows for it to turn them itself: its chains are then the same.
    """
    keys, values, *_ = arguments(write)
    parts: list[Any] = [query.args[0], keys.args[0], values]
    product = whole_of(parts)
    (_, q_width), (kv_heads, k_width), v_shape = (part.meta["val"].shape[1:] for part in parts)
    alike = q_width == k_width and v_shape == (kv_heads, k_width) and can_fuse(k_width, half)
    if product and alike and readers(product) == {query, keys, write}:
        return low.take(product, ops.linear.default, num_readers=3)
    return None


@rule(ops.attention.default)
def _attention(low: CudaLowering, node: Node) -> None:
    *tensors, scale, tree = arguments(node)
    q, k_cache, v_cache, position, lane, prefix, ancestor, block_table = map(low.operand, tensors)
    rows, y, count = low.most[q.count], low.result(node), low.count(q)
    heads, kv_heads, head_dim = q.shape[1], k_cache.shape[1], q.shape[2]
    g = low.io.geometry
    sizes: dict[str, Any] = {
        "rows": rows,
        "heads": heads,
        "kv_heads": kv_heads,
        "head_dim": head_dim,
        "scale": float(scale),
    }
    sizes |= {"q_stride": q.stride, "table_stride": g.blocks_per_lane, "page": low.page(k_cache)}
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


@rule(ops.kv_move.default)
def _kv_move(low: CudaLowering, node: Node) -> None:
    k_cache, v_cache, lane, source, target, block_table = map(low.operand, node.args)
    g = low.io.geometry
    work = kv_move_work(
        moves=low.most["moves"],
        layers=low.layers,
        layer=low.page(k_cache) // g.num_layers,
        kv_heads=k_cache.shape[1],
        head_dim=k_cache.shape[2],
        table_stride=g.blocks_per_lane,
        page=low.page(k_cache),
    )
    low.launch(
        "kv_move", work, lane=lane, source=source, target=target, block_table=block_table, count=low.count(lane),
        k_cache=k_cache, v_cache=v_cache,
    )  # fmt: skip
