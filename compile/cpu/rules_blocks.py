"""Rules of what draft blocks have beyond a decoder: attention over a window, convolutions inside a block, the lattice.

Knows no model.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.fx import Node

from tandem.compile.lowering import Lowering, Rule
from tandem.compile.views import arguments, registrar, width

BLOCKS: dict[Any, Rule] = {}
rule = registrar(BLOCKS)


@rule(torch.ops.tandem.block_attention.default)
def _block_attention(low: Lowering, node: Node) -> None:
    *tensors, scale, block, window = arguments(node)
    q, k_cache, v_cache, position, lane, prefix, block_table = map(low.operand, tensors)
    y = low.result(node)
    low.assembly.launch(
        f"block_attention_{k_cache.dtype}", count=low.count(q), q=q, q_stride=q.stride, k_cache=k_cache,
        v_cache=v_cache, position=position, lane=lane, prefix=prefix, block_table=block_table, y=y, y_stride=y.stride,
        heads=q.shape[1], block=block, window=window, scale=float(scale), **low.cache(k_cache),
    )  # fmt: skip


@rule(torch.ops.tandem.block_conv.default)
def _block_conv(low: Lowering, node: Node) -> None:
    value, moved, fixed, *where, taps = arguments(node)
    x, delta, weight = low.rows(value), low.rows(moved), low.weight(fixed)
    position, prefix = map(low.operand, where)
    y, channels = low.result(node), width(x)
    low.assembly.launch(
        "block_conv", count=low.count(x), x=x, x_stride=x.stride, delta=delta, delta_stride=delta.stride,
        weight=weight, position=position, prefix=prefix, y=y, y_stride=y.stride, channels=channels, taps=taps,
        group=channels * taps // width(delta),
    )  # fmt: skip


@rule(torch.ops.tandem.lattice_scores.default)
def _lattice_scores(low: Lowering, node: Node) -> None:
    found, likely, by, *where, before, after = node.args
    candidate, unary, gate = low.operand(found), low.rows(likely), low.rows(by)
    token, output_row, position, prefix = map(low.operand, where)
    predecessor, successor = low.weight(before), low.weight(after)
    low.assembly.launch(
        f"lattice_scores_{predecessor.dtype}", count=low.count(unary), candidate=candidate, unary=unary, gate=gate,
        gate_stride=gate.stride, token=token, output_row=output_row, position=position, prefix=prefix,
        predecessor=predecessor, successor=successor, score=low.result(node), k=width(unary),
        rank=predecessor.shape[1],
    )  # fmt: skip


@rule(torch.ops.tandem.lattice_walk.default)
def _lattice_walk(low: Lowering, node: Node) -> None:
    value, *where = node.args
    score, (output_row, position, prefix) = low.rows(value), map(low.operand, where)
    low.assembly.launch(
        "lattice_walk", count=low.count(score), score=score, output_row=output_row, position=position, prefix=prefix,
        greedy=low.result(node), k=score.shape[1],
    )  # fmt: skip
