"""Lowers exported parts to ONNX nodes, operator by operator, each by its rule.

An operator without a rule fails the export by name. Knows no model; the rules stand in `compile/onnx/rules.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from torch.fx import Node

from tandem.compile.onnx.graph import Graph
from tandem.compile.trace import Part
from tandem.errors import LoweringError

Rule = Callable[..., Any]
"""Called with the lowering, the node and its arguments, tensors among them as ONNX values; gives the node's values."""


class Lowering:
    """Walks one part's graph at a time. `rules` say by operator which nodes to emit.

    `bf16` has the weights that count as bf16 ones where operators tell them apart, whatever their values' type is.
    """

    def __init__(self, graph: Graph, rules: Mapping[Any, Rule]) -> None:
        self.graph, self.bf16 = graph, set[str]()
        self._rules = rules
        self._values: dict[Node, Any] = {}
        self._bound: dict[str, str] = {}
        self._names: dict[Node, str] = {}
        self._where = ""

    def lower(self, part: Part, bound: dict[str, str], where: str, *, outputs: int | None = None) -> list[str]:
        """Emits what the part's first `outputs` outputs need (all unless given) and returns them.

        `bound` has placeholders' values by name; those the part writes to are bound anew in it. `where` goes before
        the names of nodes.

        Raises LoweringError, which names the operator, for what has no lowering.
        """
        returned = next(n for n in part.graph.nodes if n.op == "output").args[0][:outputs]
        needed = _needed(part, returned)
        self._values, self._bound = {}, bound
        self._names = {
            node: part.parameters.get(node.name, node.name.removeprefix("inputs_"))
            for node in part.graph.nodes
            if node.op == "placeholder"
        }
        for node in part.graph.nodes:
            if node in needed and node.op == "call_function":
                self.graph.scope = f"{where}/{node.name}"
                self._apply(node)
        return [self._value(node) for node in returned]

    def _apply(self, node: Node) -> None:
        self._where = f"operator {node.target} (node {node.name})"
        if node.target not in self._rules:
            raise LoweringError(f"no ONNX lowering for {self._where}; add a rule")
        if node.kwargs:
            raise self.refusal(f"{', '.join(node.kwargs)} has no lowering")
        arguments = [self._value(arg) if isinstance(arg, Node) else arg for arg in node.args]
        self._values[node] = self._rules[node.target](self, node, *arguments)

    def _value(self, node: Node) -> Any:
        # A placeholder may be unbound, such as the lane of a row where there is one lane; emit refuses its use.
        return self._bound.get(self._names[node]) if node.op == "placeholder" else self._values[node]

    def rebind(self, placeholder: Node, value: str) -> None:
        """From here on, and for who called `lower`, `placeholder` has been written to and is `value`."""
        self._bound[self._names[placeholder]] = value

    def refusal(self, why: str) -> LoweringError:
        """The error to raise when the operator at hand is used in a way that has no lowering."""
        return LoweringError(f"{self._where}: {why}")

    def emit(self, operator: str, *inputs: str, **attributes: Any) -> str:
        return self.emit_all(operator, inputs, 1, **attributes)[0]

    def emit_all(self, operator: str, inputs: tuple[str, ...], outputs: int, **attributes: Any) -> tuple[str, ...]:
        if None in inputs:
            raise self.refusal("an argument has no place in a plain step")
        return self.graph.emit_all(operator, inputs, outputs, **attributes)

    def reshape(self, value: str, *shape: int) -> str:
        """`value` in another shape: 0 keeps the size at that place, -1 takes what is left."""
        return self.emit("Reshape", value, self.graph.constant(shape))


def _needed(part: Part, returned: list[Node]) -> set[Node]:
    """The nodes that outputs depend on, and those that write to a placeholder."""
    waiting = list(returned)
    waiting += [n for n in part.graph.nodes if getattr(getattr(n.target, "_schema", None), "is_mutable", False)]
    needed: set[Node] = set()
    while waiting:
        node = waiting.pop()
        if node not in needed:
            needed.add(node)
            waiting += node.all_input_nodes
    return needed
