"""Finds the elementwise glue between operators: runs of pointwise aten nodes that one compiled kernel can hold.

A run computes each row from the same row of its inputs and from weights; whatever mixes rows or sums is refused by
name, for sums belong to operators. Knows nothing of devices; `glue_compile` makes kernels of runs.
"""

from __future__ import annotations

import operator
from collections.abc import Container, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch.fx import Graph, GraphModule, Node

from tandem.compile.trace import Part
from tandem.errors import LoweringError

aten = torch.ops.aten
SIZED = (aten.view.default, aten.reshape.default, aten.expand.default)
"""Views whose second argument is the shape of their result, traced rows included."""
SPLITS = (aten.chunk.default, aten.split.Tensor, aten.split_with_sizes.default, aten.unbind.int)
VIEWS = {
    *SIZED,
    *SPLITS,
    *(aten.alias.default, aten.detach.default, aten.slice.Tensor, aten.select.int),
    *(aten.unsqueeze.default, aten.squeeze.dim, aten.squeeze.dims, aten.transpose.int, aten.permute.default),
}
"""What moves nothing: the kernel that reads a view computes where its elements lie."""
CASTS = (aten.to.dtype,)
CHECKS = (aten._assert_tensor_metadata.default,)
"""What a trace says about its tensors; nothing to compute."""


@dataclass(frozen=True, slots=True)
class Run:
    """Pointwise `nodes`, with the views between them, in order.

    `inputs` and `outputs` are nodes of whole contiguous tensors, each of `rows` rows as traced, or among the `weights`;
    the names of these nodes are the operands' names.
    """

    nodes: tuple[Node, ...]
    inputs: tuple[Node, ...]
    outputs: tuple[Node, ...]
    weights: frozenset[str]
    rows: int

    def shape(self, node: Node, rows: int) -> tuple[int, ...]:
        """An operand's shape in a pass of `rows` rows."""
        shape = tuple(node.meta["val"].shape)
        return shape if node.name in self.weights else (rows, *shape[1:])

    def module(self, rows: int, dtypes: Mapping[str, torch.dtype]) -> GraphModule:
        """The run for `rows` rows: its inputs in order -> a tuple of its outputs.

        Operands are of the traced types, or of those that `dtypes` gives by name; computed is in the traced ones.
        """
        graph, values = Graph(), dict[Node, Node]()
        for node in self.inputs:
            given = graph.placeholder(node.name)
            values[node] = _cast(graph, given, dtypes.get(node.name), node.meta["val"].dtype)
        for node in self.nodes:
            if node.target is aten.slice.Tensor and node.args[1:2] in ((), (0,)):  # all of it: rows are kept
                values[node] = values[node.all_input_nodes[0]]
            else:
                values[node] = graph.node_copy(node, values.__getitem__)
                if node.target in SIZED and node.name not in self.weights:
                    _resize(values[node], self.rows, rows)
        wanted = ((node, dtypes.get(node.name, node.meta["val"].dtype)) for node in self.outputs)
        graph.output(tuple(_cast(graph, values[node], node.meta["val"].dtype, dtype) for node, dtype in wanted))
        return GraphModule(torch.nn.Module(), graph)


def _cast(graph: Graph, value: Node, present: torch.dtype | None, wanted: torch.dtype) -> Node:
    return value if present in (None, wanted) else graph.call_function(aten.to.dtype, (value, wanted))


def _resize(view: Node, traced: int, rows: int) -> None:
    """Gives a view another number of rows, where it says their number."""
    args: Any = view.args
    if args[1][0] == traced:
        view.args = (args[0], [rows, *args[1][1:]])


def steps(part: Part) -> list[Node | Run]:
    """What to do in order: nodes of the part's graph, with each run of glue in place of its nodes.

    A run stands before the first operator behind its nodes, the views of its outputs behind it; views that only runs
    read, and checks, are left out. Raises LoweringError naming the node that is neither an operator of ours, a view
    nor pointwise, or that mixes rows.
    """
    glue = Glue(part)
    done: list[Node | Run] = []
    waiting: list[Node] = []
    for node in part.graph.nodes:
        if kind(node) in ("glue", "view"):
            waiting.append(node)
        elif kind(node) != "check":
            done += glue.segment(waiting)
            done.append(node)
            waiting = []
    return done


class Glue:
    """What the nodes of one part are to each other."""

    def __init__(self, part: Part) -> None:
        self._weights = {node for node in part.graph.nodes if node.name in part.parameters}
        self._derived: set[Node] = set()
        for node in part.graph.nodes:
            inputs = node.all_input_nodes
            if inputs and kind(node) in ("glue", "view") and self._weights.issuperset(inputs):
                self._weights.add(node)
                self._derived.add(node)

    def segment(self, nodes: list[Node]) -> Iterator[Node | Run]:
        """Steps of nodes between two operators: views of what is there, runs, views of what those make."""
        glue = [node for node in nodes if kind(node) == "glue"]
        for node in glue:
            if node in self._derived and _taken(node):
                raise _refusal(node, "is made of weights alone and an operator reads it; store it as a weight")
        seeds = [node for node in glue if node not in self._derived]
        made, late = set(seeds), []
        for view in nodes:
            if kind(view) == "view" and _taken(view):
                if made.isdisjoint(view.all_input_nodes):
                    yield view
                else:
                    made.add(view)
                    late.append(view)
        for rows in dict.fromkeys(map(_rows, seeds)):
            if run := self._run([seed for seed in seeds if _rows(seed) == rows], rows):
                yield run
        yield from late

    def _run(self, seeds: list[Node], rows: int) -> Run | None:
        """The run of these nodes and of all that they need computed; None where nobody reads it."""
        nodes, inputs = dict[Node, None](), dict[Node, None]()

        def visit(node: Node) -> None:
            if node in nodes or node in inputs:
                return
            if node in seeds or kind(node) == "view" or node in self._derived:
                for source in node.all_input_nodes:
                    visit(source)
                nodes[node] = None
            else:
                inputs[node] = None
            if node not in self._weights:
                self._check(node, rows)

        for seed in seeds:
            visit(seed)
        outputs = tuple(seed for seed in seeds if _read_outside(seed, nodes))
        for output in outputs:
            if not output.meta["val"].is_contiguous():
                raise _refusal(output, "makes rows that do not lie one behind the other; transpose in an operator")
        weights = frozenset(node.name for node in (*inputs, *nodes) if node in self._weights)
        return Run(tuple(nodes), tuple(inputs), outputs, weights, rows) if outputs else None

    def _check(self, node: Node, rows: int) -> None:
        """Holds that `node` has the run's rows, and makes each of the same row of its inputs and of weights."""
        made = node.meta["val"]
        for value in made if isinstance(made, (list, tuple)) else [made]:
            if not value.dim() or value.shape[0] != rows:
                raise _refusal(node, f"is {list(value.shape)} among {rows} rows; keep the first dimension")
        if kind(node) == "view" and not _keeps_rows(node):
            raise _refusal(node, "moves rows to another dimension; keep the first dimension")
        for source in node.all_input_nodes if kind(node) == "glue" else []:
            value = source.meta["val"]
            if source not in self._weights and value.dim() != made.dim():
                raise _refusal(node, f"reads the rows of {source.name} {list(value.shape)} across its own")
            if source in self._weights and value.dim() == made.dim() and value.shape[0] != 1:
                raise _refusal(node, f"lays the weight {source.name} {list(value.shape)} along rows")


def kind(node: Node) -> str:
    """`glue`, `view`, `check`, or `other`: operators of ours, placeholders and the output.

    LoweringError for what is none of these.
    """
    target: Any = node.target
    first: Any = node.args[0] if node.args else None
    if node.op != "call_function":
        return "other"
    if target in CHECKS:
        return "check"
    if target is operator.getitem:
        return "view" if first.target in SPLITS else "other"
    if target in VIEWS:
        return "view"
    if target in CASTS:
        return "glue" if first.meta["val"].dtype != node.meta["val"].dtype else "view"
    if target.namespace == "tandem":
        return "other"
    if torch.Tag.pointwise not in target.tags or target._schema.is_mutable:
        raise _refusal(node, "is neither a view nor pointwise; make reductions and moves operators of ours")
    return "glue"


def _keeps_rows(node: Node) -> bool:
    """Whether a view leaves the first dimension first; sizes do not tell where a row is as wide as there are rows."""
    x: Any = node.args[0]
    rest: Any = node.args[1:]
    if node.target is aten.permute.default:
        return bool(rest[0][0] == 0)
    if node.target is aten.transpose.int:
        return all(dim % x.meta["val"].dim() for dim in rest)
    if node.target in (aten.select.int, aten.unbind.int):
        return bool(rest and rest[0] % x.meta["val"].dim())
    return node.target is not aten.expand.default or len(rest[0]) == x.meta["val"].dim()


def _taken(node: Node) -> bool:
    """Whether an operator or the part's output reads this node, directly or through views."""
    return any(kind(user) == "other" or (kind(user) == "view" and _taken(user)) for user in node.users)


def _read_outside(node: Node, inside: Container[Node]) -> bool:
    """Whether anything but the nodes `inside` reads this node, directly or through views."""
    return any(
        kind(user) != "check" and (user not in inside or (kind(user) == "view" and _read_outside(user, inside)))
        for user in node.users
    )


def _rows(node: Node) -> int:
    value = node.meta["val"]
    if not value.dim():
        raise _refusal(node, "makes a single number; only rows of the pass have a place")
    return int(value.shape[0])


def _refusal(node: Node, why: str) -> LoweringError:
    return LoweringError(f"operator {node.target} (node {node.name}) {why}")
