"""Lowers exported parts to launches of the C++ library: one rule per operator, views resolved to strides.

An operator without a rule fails the build by name. Knows no model.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from math import prod
from typing import Any

import torch
from torch.fx import Node

from tandem.artifacts.io import IoLayout
from tandem.compile.assembly import Argument, Assembly, Buffer, Operand
from tandem.compile.trace import MOVES, OUTPUTS, ROWS, Part
from tandem.errors import LoweringError

COUNTS = {"rows": 0, "outputs": 1, "moves": 2}
TRACED = {ROWS: "rows", OUTPUTS: "outputs", MOVES: "moves"}
DTYPES = {torch.float32: "fp32", torch.bfloat16: "bf16", torch.int32: "int32"}

Rule = Callable[["Lowering", Node], None]
RULES: dict[Any, Rule] = {}


def rule(*targets: Any) -> Callable[[Rule], Rule]:
    def register(function: Rule) -> Rule:
        RULES.update(dict.fromkeys(targets, function))
        return function

    return register


class Lowering:
    """Walks one part's graph at a time. `inputs` binds placeholders, `results` chooses where outputs lie."""

    def __init__(self, assembly: Assembly, io: IoLayout, page_bytes: int) -> None:
        self.assembly, self.io, self.page_bytes = assembly, io, page_bytes
        self._values: dict[Node, Operand] = {}

    def lower(self, part: Part, inputs: dict[str, Operand], results: list[Operand] | None = None) -> list[Operand]:
        """Appends the part's launches and returns its outputs. `results`, where given, are used as outputs."""
        self._values = {}
        returned = [node for node in next(n for n in part.graph.nodes if n.op == "output").args[0] if node is not None]
        self._values.update(zip(returned, results or [], strict=False))
        for node in part.graph.nodes:
            if node.op == "placeholder":
                name = part.parameters.get(node.name, node.name.removeprefix("inputs_"))
                if node.users:
                    self._values[node] = inputs[name]
            elif node.op == "call_function":
                self._apply(node)
        return [self._values[node] for node in returned]

    def _apply(self, node: Node) -> None:
        if node.target not in RULES:
            raise LoweringError(f"no CPU lowering for operator {node.target} (node {node.name}); add a rule and a kernel")
        RULES[node.target](self, node)

    def operand(self, node: Any) -> Operand:
        return self._values[node]

    def alias(self, node: Node, operand: Operand) -> None:
        self._values[node] = operand

    def result(self, node: Node, index: int | None = None) -> Operand:
        """Where a node's output goes: a place chosen beforehand, or new scratch of the traced shape."""
        key, meta = node, node.meta["val"]
        if index is not None:
            meta = meta[index]
            key = next((user for user in node.users if user.args[1] == index), node)
        if key not in self._values:
            self._values[key] = self._scratch(node, tuple(meta.shape), DTYPES[meta.dtype])
        return self._values[key]

    def _scratch(self, node: Node, shape: tuple[int, ...], dtype: str) -> Operand:
        if shape[0] not in TRACED:
            raise LoweringError(f"{node.name}: first dimension {shape[0]} is no row count; programs are made of rows")
        count, width = TRACED[shape[0]], prod(shape[1:])
        most = self.io.geometry.max_outputs if count == "outputs" else self.io.geometry.max_rows
        buffer = Buffer(most * width * 4)
        return Operand(buffer, 0, buffer.nbytes, shape, width, count, dtype)

    def count(self, of: Operand) -> Operand:
        """The io field that holds how many rows `of` has."""
        field = self.io.fields["counts"]
        return Operand("io", field.offset + 4 * COUNTS[of.count], 4, dtype="int32")

    def cache(self, k: Operand) -> dict[str, Argument]:
        """What every kernel over the cache is told: K is [pages, kv heads, head_dim, tokens]."""
        stride = self.io.geometry.blocks_per_lane
        return {"table_stride": stride, "page_bytes": self.page_bytes, "kv_heads": k.shape[1], "head_dim": k.shape[2]}


@rule(torch.ops.aten.view.default, torch.ops.aten.reshape.default)
def _view(low: Lowering, node: Node) -> None:
    x, shape = low.operand(node.args[0]), tuple(node.meta["val"].shape)
    if shape[0] != x.shape[0]:
        raise LoweringError(f"{node.name}: a view from {x.shape} to {shape} mixes rows; keep the first dimension")
    low.alias(node, replace(x, shape=shape))


@rule(torch.ops.aten.slice.Tensor)
def _slice(low: Lowering, node: Node) -> None:
    x, shape = low.operand(node.args[0]), tuple(node.meta["val"].shape)
    dim, start = node.args[1] if len(node.args) > 1 else 0, node.args[2] if len(node.args) > 2 else 0
    step = node.args[4] if len(node.args) > 4 else 1
    if shape == x.shape:
        return low.alias(node, x)
    if dim not in (1, -1) or len(x.shape) != 2 or step != 1:
        raise LoweringError(f"{node.name}: only plain slices of a row's columns have a lowering")
    start = start % x.shape[1] if start < 0 else start
    low.alias(node, replace(x, shape=shape, offset=x.offset + 4 * start))


@rule(__import__("operator").getitem)
def _getitem(low: Lowering, node: Node) -> None:
    low.result(node.args[0], node.args[1])


@rule(torch.ops.aten.add.Tensor, torch.ops.aten.mul.Tensor)
def _binary(low: Lowering, node: Node) -> None:
    x, z = low.operand(node.args[0]), low.operand(node.args[1])
    if x.shape != z.shape:
        raise LoweringError(f"{node.name}: {x.shape} with {z.shape} broadcasts; only equal shapes have a lowering")
    y, name = low.result(node), "add" if node.target is torch.ops.aten.add.Tensor else "mul"
    low.assembly.launch(
        name, count=low.count(x), x=x, x_stride=x.stride, z=z, z_stride=z.stride, y=y, y_stride=y.stride, width=_width(x)
    )


def _width(x: Operand) -> int:
    return prod(x.shape[1:])


@rule(torch.ops.tandem.embedding.default)
def _embedding(low: Lowering, node: Node) -> None:
    token, weight = map(low.operand, node.args)
    y = low.result(node)
    low.assembly.launch(
        f"embedding_{weight.dtype}", count=low.count(y), token=token, weight=weight, y=y, y_stride=y.stride, k=weight.shape[1]
    )


@rule(torch.ops.tandem.linear.default)
def _linear(low: Lowering, node: Node) -> None:
    x, weight = low.operand(node.args[0]), low.operand(node.args[1])
    bias = low.operand(node.args[2]) if len(node.args) > 2 and node.args[2] is not None else None
    y, (n, k) = low.result(node), weight.shape
    low.assembly.launch(
        f"linear_{weight.dtype}", count=low.count(x), x=x, x_stride=x.stride, weight=weight, bias=bias, y=y,
        y_stride=y.stride, n=n, k=k,
    )  # fmt: skip


@rule(torch.ops.tandem.rms_norm.default)
def _rms_norm(low: Lowering, node: Node) -> None:
    x, weight = low.operand(node.args[0]), low.operand(node.args[1])
    y = low.result(node)
    low.assembly.launch(
        "rms_norm", count=low.count(x), x=x, x_stride=x.stride, weight=weight, y=y, y_stride=y.stride,
        groups=_width(x) // x.shape[-1], width=x.shape[-1], eps=float(node.args[2]),
    )  # fmt: skip


@rule(torch.ops.tandem.add_rms_norm.default)
def _add_rms_norm(low: Lowering, node: Node) -> None:
    x, delta, weight = map(low.operand, node.args[:3])
    total, y = low.result(node, 0), low.result(node, 1)
    low.assembly.launch(
        "add_rms_norm", count=low.count(x), x=x, x_stride=x.stride, delta=delta, delta_stride=delta.stride,
        weight=weight, sum=total, sum_stride=total.stride, y=y, y_stride=y.stride, width=_width(x),
        eps=float(node.args[3]),
    )  # fmt: skip


@rule(torch.ops.tandem.rotary.default)
def _rotary(low: Lowering, node: Node) -> None:
    x, cos, sin, position = map(low.operand, node.args)
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
    q, k_cache, v_cache, position, lane, prefix, ancestor, block_table = map(low.operand, node.args[:8])
    scale, tree = node.args[8:]
    y = low.result(node)
    low.assembly.launch(
        f"attention_{'tree_' if tree else ''}{k_cache.dtype}", count=low.count(q), q=q, q_stride=q.stride,
        k_cache=k_cache, v_cache=v_cache, position=position, lane=lane, prefix=prefix, ancestor=ancestor,
        ancestor_stride=ancestor.shape[1], block_table=block_table, y=y, y_stride=y.stride, heads=q.shape[1],
        scale=float(scale), **low.cache(k_cache),
    )  # fmt: skip


@rule(torch.ops.tandem.swiglu.default)
def _swiglu(low: Lowering, node: Node) -> None:
    x, y = low.operand(node.args[0]), low.result(node)
    low.assembly.launch("swiglu", count=low.count(x), x=x, x_stride=x.stride, y=y, y_stride=y.stride, width=_width(y))


@rule(torch.ops.tandem.gather_rows.default)
def _gather_rows(low: Lowering, node: Node) -> None:
    x, row = map(low.operand, node.args)
    y = low.result(node)
    low.assembly.launch(
        "gather_rows", count=low.count(y), x=x, x_stride=x.stride, row=row, y=y, y_stride=y.stride, width=_width(x)
    )


@rule(torch.ops.tandem.argmax_gap.default)
def _argmax_gap(low: Lowering, node: Node) -> None:
    logits = low.operand(node.args[0])
    low.assembly.launch(
        "argmax_gap", count=low.count(logits), logits=logits, logits_stride=logits.stride,
        argmax=low.result(node, 0), gap=low.result(node, 1), width=_width(logits),
    )  # fmt: skip


@rule(torch.ops.tandem.kv_move.default)
def _kv_move(low: Lowering, node: Node) -> None:
    k_cache, v_cache, lane, source, target, block_table = map(low.operand, node.args)
    low.assembly.launch(
        f"kv_move_{k_cache.dtype}", count=low.count(lane), k_cache=k_cache, v_cache=v_cache, lane=lane, source=source,
        target=target, block_table=block_table, **low.cache(k_cache),
    )  # fmt: skip
