"""One rule per operator: the ONNX nodes that spell its definition in `kernels/`, over one sequence's dense cache.

Knows no model. Letters: R new rows, S positions of the cache with them, G kv heads, n heads per kv head, D head_dim.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from onnx import TensorProto
from torch.fx import Node

from tandem.compile.onnx.lowering import Lowering, Rule

RULES: dict[Any, Rule] = {}


def rule(*targets: Any) -> Callable[[Rule], Rule]:
    def register(function: Rule) -> Rule:
        RULES.update(dict.fromkeys(targets, function))
        return function

    return register


def _shape(value: Any) -> tuple[int, ...]:
    """The traced shape; its first size stands for R."""
    return tuple(value.meta["val"].shape)


def _rounded(low: Lowering, x: str) -> str:
    """`x` as bf16 holds it, in fp32 again."""
    return low.emit("Cast", low.emit("Cast", x, to=TensorProto.BFLOAT16), to=TensorProto.FLOAT)


@rule(torch.ops.aten.view.default, torch.ops.aten.reshape.default)
def _view(low: Lowering, node: Node, x: str, _: Any) -> str:
    first, *rest = _shape(node)
    if first != _shape(node.args[0])[0]:
        raise low.refusal(f"a view from {_shape(node.args[0])} to {_shape(node)} mixes rows; keep the first dimension")
    return low.reshape(x, 0, *rest)


@rule(torch.ops.aten.slice.Tensor)
def _slice(low: Lowering, node: Node, x: str, dim: int = 0, start: Any = None, end: Any = None, step: int = 1) -> str:
    before, after = _shape(node.args[0]), _shape(node)
    if before == after:
        return x
    if dim % len(before) == 0 or step != 1:
        raise low.refusal("only plain slices of a row's columns have a lowering")
    first, last, _ = slice(start, end).indices(before[dim])
    return low.emit("Slice", x, *map(low.graph.constant, ([first], [last], [dim])))


@rule(operator.getitem)
def _getitem(low: Lowering, node: Node, source: tuple[str, ...], index: int) -> str:
    return source[index]


@rule(torch.ops.aten.add.Tensor)
def _add(low: Lowering, node: Node, x: str, z: str) -> str:
    return low.emit("Add", x, z)


@rule(torch.ops.aten.mul.Tensor)
def _mul(low: Lowering, node: Node, x: str, z: str) -> str:
    return low.emit("Mul", x, z)


@rule(torch.ops.tandem.embedding.default)
def _embedding(low: Lowering, node: Node, token: str, weight: str) -> str:
    return low.emit("Gather", weight, token)


@rule(torch.ops.tandem.linear.default)
def _linear(low: Lowering, node: Node, x: str, weight: str, bias: str | None) -> str:
    if weight in low.bf16:
        x = _rounded(low, x)
    return low.emit("Gemm", x, weight, *([bias] if bias else []), transB=1)


@rule(torch.ops.tandem.rms_norm.default)
def _rms_norm(low: Lowering, node: Node, x: str, weight: str, eps: float) -> str:
    mean = low.emit("ReduceMean", low.emit("Mul", x, x), low.graph.constant([-1]), keepdims=1)
    root = low.emit("Sqrt", low.emit("Add", mean, low.graph.constant(eps, np.float32)))
    return low.emit("Mul", low.emit("Mul", x, low.emit("Reciprocal", root)), weight)


@rule(torch.ops.tandem.add_rms_norm.default)
def _add_rms_norm(low: Lowering, node: Node, x: str, delta: str, weight: str, eps: float) -> tuple[str, str]:
    total = low.emit("Add", x, delta)
    return total, _rms_norm(low, node, total, weight, eps)


@rule(torch.ops.tandem.rotary.default)
def _rotary(low: Lowering, node: Node, x: str, cos: str, sin: str, position: str) -> str:
    half, head_dim = _shape(node.args[1])[1], _shape(node)[2]
    turned = [low.emit("Unsqueeze", low.emit("Gather", t, position), low.graph.constant([1])) for t in (cos, sin)]
    sizes = [half, half, *filter(None, [head_dim - 2 * half])]
    first, second, *rest = low.emit_all("Split", (x, low.graph.constant(sizes)), len(sizes), axis=-1)

    def product(value: str, table: int) -> str:
        return low.emit("Mul", value, turned[table])

    left = low.emit("Sub", product(first, 0), product(second, 1))
    right = low.emit("Add", product(second, 0), product(first, 1))
    return low.emit("Concat", left, right, *rest, axis=-1)


@rule(torch.ops.tandem.kv_write.default)
def _kv_write(low: Lowering, node: Node, k: str, v: str, k_cache: str, v_cache: str, *_: Any) -> None:
    """The caches are [1, G, S, D], both: new rows [R, G, D] are appended, rounded as the cache's type rounds them."""
    for rows, cache, placeholder in ((k, k_cache, node.args[2]), (v, v_cache, node.args[3])):
        assert isinstance(placeholder, Node)
        if placeholder.meta["val"].dtype is torch.bfloat16:
            rows = _rounded(low, rows)
        rows = low.emit("Unsqueeze", low.emit("Transpose", rows, perm=(1, 0, 2)), low.graph.constant([0]))
        low.rebind(placeholder, low.emit("Concat", cache, rows, axis=2))


@rule(torch.ops.tandem.attention.default)
def _attention(low: Lowering, node: Node, q: str, k_cache: str, v_cache: str, position: str, *rest: Any) -> str:
    """The dense cache has a page per position: `block_table` is 0..S-1, [1, S], and position t lies in slot t."""
    *_, block_table, scale, tree = rest
    if tree:
        raise low.refusal("a tree has no place in a plain step")
    (_, heads, head_dim), groups = _shape(node), _shape(node.args[1])[1]
    each = heads // groups
    # Heads of one kv head stand as rows beside each other, so that K and V are never repeated.
    q = low.emit("Transpose", low.reshape(q, 0, groups, each, head_dim), perm=(1, 0, 2, 3))  # [G, R, n, D]
    keys = low.emit("Transpose", k_cache, perm=(0, 1, 3, 2))  # [1, G, D, S]
    scores = low.emit("MatMul", low.reshape(q, 1, groups, -1, head_dim), keys)  # [1, G, R n, S]
    scores = low.emit("Mul", scores, low.graph.constant(scale, np.float32))
    column = low.emit("Unsqueeze", position, low.graph.constant([1]))
    seen = low.emit("Unsqueeze", low.emit("LessOrEqual", block_table, column), low.graph.constant([1]))  # [R, 1, S]
    never = low.graph.constant(-np.inf, np.float32)
    scores = low.emit("Where", seen, low.reshape(scores, groups, -1, each, 0), never)  # [G, R, n, S]
    shares = low.reshape(low.emit("Softmax", scores, axis=-1), 1, groups, -1, 0)
    mixed = low.reshape(low.emit("MatMul", shares, v_cache), groups, -1, each, head_dim)
    return low.reshape(low.emit("Transpose", mixed, perm=(1, 0, 2, 3)), 0, heads, head_dim)


@rule(torch.ops.tandem.swiglu.default)
def _swiglu(low: Lowering, node: Node, gate_up: str) -> str:
    gate, up = low.emit_all("Split", (gate_up,), 2, axis=-1, num_outputs=2)
    return low.emit("Mul", low.emit("Mul", gate, low.emit("Sigmoid", gate)), up)


@rule(torch.ops.tandem.gather_rows.default)
def _gather_rows(low: Lowering, node: Node, x: str, row: str) -> str:
    return low.emit("Gather", x, row)
