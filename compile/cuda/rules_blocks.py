"""Rules of draft blocks: attention over a window, convolution inside the block, the lattice and its walk.

Knows no model and no numbers of a device.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch.fx import Node

from tandem.compile.lowering import ITEM_BYTES
from tandem.compile.views import arguments, registrar, width
from tandem.kernels.cuda.draft_block import block_attention_works, block_conv_work, num_spans
from tandem.kernels.cuda.lattice import lattice_scores_work, lattice_walk_work

if TYPE_CHECKING:
    from tandem.compile.cuda.lowering import CudaLowering

BLOCKS: dict[Any, Any] = {}
rule = registrar(BLOCKS)
ops = torch.ops.tandem


@rule(ops.block_attention.default)
def _block_attention(low: CudaLowering, node: Node) -> None:
    *tensors, scale, block, window = arguments(node)
    q, k_cache, v_cache, position, lane, prefix, block_table = map(low.operand, tensors)
    y, count, heads, head_dim = low.result(node), low.count(q), q.shape[1], q.shape[2]
    spans = num_spans(window, block, low.cover())
    parts = {name: low.buffer(q.count, heads, spans) for name in "ml"}
    parts["acc"] = low.buffer(q.count, heads, spans, head_dim)
    split, merge = block_attention_works(
        rows=low.most[q.count], heads=heads, kv_heads=k_cache.shape[1], head_dim=head_dim, block=block, window=window,
        context=low.cover(), scale=float(scale), q_stride=q.stride, table_stride=low.io.geometry.blocks_per_lane,
        page=low.page(k_cache), itemsize=ITEM_BYTES[k_cache.dtype],
    )  # fmt: skip
    low.launch(
        "block_attention_split", split, q=q, k_cache=k_cache, v_cache=v_cache, position=position, lane=lane,
        prefix=prefix, block_table=block_table, count=count, **parts,
    )  # fmt: skip
    low.launch("block_attention_merge", merge, prefix=prefix, count=count, y=y, **parts)


@rule(ops.block_conv.default)
def _block_conv(low: CudaLowering, node: Node) -> None:
    value, moved, factors, at, anchor, taps = arguments(node)
    x, delta, weight = low.addends(value), low.rows(moved), low.weight(factors)
    position, prefix, y = low.operand(at), low.operand(anchor), low.result(node)
    work = block_conv_work(
        rows=low.most[x.count], width=width(x), taps=taps, group=width(x) * taps // width(delta), parts=x.parts,
        x_stride=x.stride, delta_stride=delta.stride, y_stride=y.stride,
    )  # fmt: skip
    low.launch(
        "block_conv", work, x=x, delta=delta, weight=weight, position=position, prefix=prefix, count=low.count(x), y=y
    )


@rule(ops.lattice_scores.default)
def _lattice_scores(low: CudaLowering, node: Node) -> None:
    names = "candidate", "unary", "gate", "token", "output_row", "position", "prefix", "predecessor", "successor"
    given = dict(zip(names, map(low.operand, node.args), strict=True))
    gate, (_, k), (_, rank) = given["gate"], given["candidate"].shape, given["predecessor"].shape
    work = lattice_scores_work(slots=low.most[gate.count], k=k, rank=rank, gate_stride=gate.stride)
    low.launch("lattice_scores", work, count=low.count(gate), score=low.result(node), **given)


@rule(ops.lattice_walk.default)
def _lattice_walk(low: CudaLowering, node: Node) -> None:
    score, output_row, position, prefix = map(low.operand, node.args)
    work = lattice_walk_work(low.most[score.count], score.shape[1])
    low.launch(
        "lattice_walk", work, score=score, output_row=output_row, position=position, prefix=prefix,
        count=low.count(score), greedy=low.result(node),
    )  # fmt: skip
