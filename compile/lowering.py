"""Lowers exported parts to launches of kernels, operator by operator, each by its rule.

An operator without a rule fails the build by name. Knows no model and no device; the rules are a device's own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
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
ITEM_BYTES = {"fp32": 4, "bf16": 2, "int32": 4, "int64": 8}
DTYPES = {torch.float32: "fp32", torch.bfloat16: "bf16", torch.int32: "int32"}

Rule = Callable[["Lowering", Node], None]


class Lowering:
    """Walks one part's graph at a time. `rules` say by operator what to launch, `most` how many rows, outputs and moves
    a pass may have; `device` is a word for messages."""

    def __init__(
        self, assembly: Assembly, io: IoLayout, rules: Mapping[Any, Any], most: Mapping[str, int], device: str
    ) -> None:
        self.assembly, self.io, self.most = assembly, io, most
        self._rules, self._device = rules, device
        # Nodes, and (node, index) for outputs that nobody reads.
        self._values: dict[Any, Operand] = {}
        self._where = ""

    def lower(self, part: Part, inputs: dict[str, Operand], results: list[Operand] | None = None) -> list[Operand]:
        """Appends the part's launches and returns its outputs.

        `inputs` binds placeholders, `results` chooses where the outputs lie.

        Raises LoweringError, which names the operator, for what has no lowering.
        """
        returned = [node for node in next(n for n in part.graph.nodes if n.op == "output").args[0] if node is not None]
        self._values = dict(zip(returned, results, strict=True)) if results else {}
        for node in self.nodes(part):
            if node.op == "placeholder":
                name = part.parameters.get(node.name, node.name.removeprefix("inputs_"))
                if node.users:
                    self._values[node] = inputs[name]
            elif node.op == "call_function":
                self._apply(node)
        outputs = [self.output(node) for node in returned]
        if results and outputs != results:
            raise LoweringError("an output of the part is a view or comes twice; make it the result of an operator")
        return outputs

    def nodes(self, part: Part) -> Iterable[Node]:
        """What to lower, in order. A device may do some of it itself, between one node and the next."""
        return part.graph.nodes

    def _apply(self, node: Node) -> None:
        self._where = f"operator {node.target} (node {node.name})"
        if node.target not in self._rules:
            raise LoweringError(f"no {self._device} lowering for {self._where}; add a rule and a kernel")
        if node.kwargs:
            raise self.refusal(f"{', '.join(node.kwargs)} has no lowering")
        self._rules[node.target](self, node)

    def refusal(self, why: str) -> LoweringError:
        """The error to raise when the operator at hand is used in a way that has no lowering."""
        return LoweringError(f"{self._where}: {why}")

    def operand(self, value: Any) -> Operand:
        if not isinstance(value, Node):
            raise self.refusal(f"{value!r} stands where a tensor is wanted")
        return self._values[value]

    def output(self, value: Any) -> Operand:
        """An operand that the part returns; another part of the same device reads it."""
        return self.operand(value)

    def rows(self, value: Any) -> Operand:
        """An operand that holds fp32 values per row of the pass, not a weight: those are stored in panels."""
        x = self.operand(value)
        if not x.count or x.dtype != "fp32":
            raise self.refusal(f"{value} holds no fp32 rows of the pass")
        return x

    def weight(self, value: Any) -> Operand:
        """An operand that lies in the weights."""
        x = self.operand(value)
        if x.count:
            raise self.refusal(f"{value} is no weight")
        return x

    def alias(self, node: Node, operand: Operand) -> None:
        self._values[node] = operand

    def result(self, node: Node, index: int | None = None) -> Operand:
        """Where a node's output goes: a place chosen beforehand, or new scratch of the traced shape."""
        key: Any = node
        meta = node.meta["val"]
        if index is not None:
            meta = meta[index]
            key = next((user for user in node.users if user.args[1] == index), (node, index))
        if key not in self._values:
            shape = tuple(meta.shape)
            if shape[0] not in TRACED or meta.dtype not in DTYPES:
                raise self.refusal(f"makes {meta.dtype} {list(shape)}; programs are made of fp32 and int32 rows")
            self._values[key] = self.scratch(shape, self.stored(key, DTYPES[meta.dtype]))
        return self._values[key]

    def stored(self, value: Any, dtype: str) -> str:
        """The type in which a value of `dtype` is kept in scratch; a device may round what its kernels round anyway.

        `value` is its node, or anything else where nobody reads it.
        """
        return dtype

    def scratch(self, shape: tuple[int, ...], dtype: str) -> Operand:
        """A new buffer for a value of the traced shape `shape`, with room for the most rows a pass may have."""
        count, width = TRACED[shape[0]], prod(shape[1:])
        buffer = Buffer(self.most[count] * width * ITEM_BYTES[dtype])
        return Operand(buffer, 0, buffer.nbytes, shape, width, count, dtype)

    def count(self, of: Operand) -> Operand:
        """The io field that holds how many rows `of` has."""
        field = self.io.fields["counts"]
        return Operand("io", field.offset + 4 * COUNTS[of.count], 4, dtype="int32")

    def cache(self, k: Operand) -> dict[str, Argument]:
        """What every kernel over the cache is told: K is [pages, kv heads, head_dim, tokens]."""
        g = self.io.geometry
        return {
            "table_stride": g.blocks_per_lane,
            "page_bytes": g.drafter.page_bytes if g.drafter and k.place == "draft_kv" else g.page_bytes,
            "kv_heads": k.shape[1],
            "head_dim": k.shape[2],
        }
