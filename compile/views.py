"""Rules for what moves no bytes: views, slices of columns and picks among outputs become offsets and strides.

The same on every device. Knows no model.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from dataclasses import replace
from math import prod
from typing import Any

import torch
from torch.fx import Node

from tandem.compile.assembly import Operand
from tandem.compile.lowering import ITEM_BYTES, Lowering, Rule

VIEWS: dict[Any, Rule] = {}
RESHAPES = (torch.ops.aten.view.default, torch.ops.aten.reshape.default, torch.ops.aten.alias.default)
"""Those that show all of their source."""


def registrar(rules: dict[Any, Any]) -> Callable[..., Callable[[Any], Any]]:
    """A decorator that enters a rule into `rules` for the operators that it is given."""

    def rule(*targets: Any) -> Callable[[Any], Any]:
        def register(function: Any) -> Any:
            rules.update(dict.fromkeys(targets, function))
            return function

        return register

    return rule


rule = registrar(VIEWS)


def arguments(node: Node, *defaults: Any) -> list[Any]:
    """A node's arguments, those left out at the end taken from `defaults`."""
    return [*node.args, *defaults[len(node.args) :]]


def width(x: Operand) -> int:
    """Elements of one row."""
    return prod(x.shape[1:])


@rule(*RESHAPES)
def _view(low: Lowering, node: Node) -> None:
    x, shape = low.rows(node.args[0]), tuple(node.meta["val"].shape)
    if shape[0] != x.shape[0]:
        raise low.refusal(f"a view from {x.shape} to {shape} mixes rows; keep the first dimension")
    low.alias(node, replace(x, shape=shape))


@rule(torch.ops.aten.slice.Tensor)
def _slice(low: Lowering, node: Node) -> None:
    x, first = low.rows(node.args[0]), _first_column(node)
    if first is None:
        raise low.refusal("only plain slices of a row's columns have a lowering")
    low.alias(node, replace(x, shape=tuple(node.meta["val"].shape), offset=x.offset + ITEM_BYTES[x.dtype] * first))


def _first_column(node: Node) -> int | None:
    """Where a slice of a row's columns begins; None for any other slice."""
    value, dim, start, _, step = arguments(node, None, 0, None, None, 1)
    shape = value.meta["val"].shape
    if node.meta["val"].shape == shape:
        return 0
    if dim not in (1, -1) or len(shape) != 2 or step != 1:
        return None
    return slice(start, None).indices(shape[1])[0]


@rule(operator.getitem)
def _getitem(low: Lowering, node: Node) -> None:
    source, index = arguments(node)
    low.alias(node, low.result(source, index))


def readers(node: Node) -> set[Node]:
    """The operators that read a node's values, straight or through views."""
    return {reader for user in node.users for reader in (readers(user) if user.target in VIEWS else (user,))}


def whole_of(parts: Sequence[Node]) -> Node | None:
    """The node all of whose columns `parts` show, in this order; None where they show anything else."""
    spans = [span for span in map(columns, parts) if span]
    if len(spans) < len(parts):
        return None
    (node, *others), first, behind = zip(*spans, strict=True)
    in_order = [*first, node.meta["val"].shape[-1]] == [0, *behind]
    return node if in_order and all(other is node for other in others) else None


def columns(value: Node) -> tuple[Node, int, int] | None:
    """The node that `value` shows columns of, the first of them and the one behind; None where it mixes rows."""
    node, first = value, 0
    while node.target in VIEWS and node.target is not operator.getitem:
        (source, *_) = arguments(node)
        skipped = _first_column(node) if node.target is torch.ops.aten.slice.Tensor else 0
        if skipped is None or source.meta["val"].shape[0] != node.meta["val"].shape[0]:
            return None
        node, first = source, first + skipped
    return node, first, first + prod(value.meta["val"].shape[1:])
