"""The lowering of a part for one row bucket and one context class of a GPU.

Five things beyond the common walk: values that only products read are kept as those round them, an operator whose
only reader can take its work along waits for that reader, what is made in parts is summed for readers that take none,
what is pointwise between operators becomes kernels of its own, to be compiled later, and what nobody reads is left out.
Knows no operator by name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from math import prod
from typing import Any

import torch
from torch.fx import Node

from tandem.artifacts.io import IoLayout
from tandem.compile.assembly import Assembly, Launch, Operand, alignment
from tandem.compile.cuda.glue import Run, steps
from tandem.compile.cuda.glue_compile import ALIGNMENT
from tandem.compile.cuda.glue_kernel import GlueKernel
from tandem.compile.cuda.rules import RULES
from tandem.compile.lowering import DTYPES, ITEM_BYTES, TRACED, Lowering
from tandem.compile.trace import OUTPUTS, ROWS, Part
from tandem.compile.views import RESHAPES, readers, width
from tandem.kernels.cuda.launch import Work
from tandem.kernels.cuda.parts import add_parts_work
from tandem.keys import MAX_TREE_ROWS

ROUNDING = dict.fromkeys(
    (torch.ops.tandem.linear.default, torch.ops.tandem.attention.default, torch.ops.tandem.block_attention.default), 0
)
"""Operators that round an argument, by its place, to the type of what they multiply it with."""
TORCH_DTYPES = {name: dtype for dtype, name in DTYPES.items()}


class CudaLowering(Lowering):
    """`rows` is the bucket, `context` what the grids must cover in tokens, `compute` the type that products take."""

    def __init__(self, assembly: Assembly, io: IoLayout, *, rows: int, context: int, layers: int, compute: str) -> None:
        outputs, moves = min(rows, io.geometry.max_outputs), io.fields["move_lane"].shape[0]
        super().__init__(assembly, io, RULES, {"rows": rows, "outputs": outputs, "moves": moves}, "CUDA")
        self.context, self.layers, self.compute = context, layers, compute
        self._waiting: dict[Node, Callable[[], None]] = {}
        self._done: set[Node] = set()
        self._glue: dict[str, GlueKernel] = {}

    @property
    def glue(self) -> Mapping[str, GlueKernel]:
        """The kernels of glue that are launched so far, by the name that launches give them."""
        return self._glue

    def lower(self, part: Part, inputs: dict[str, Operand], results: list[Operand] | None = None) -> list[Operand]:
        self._waiting.clear()  # what nobody read: views of what was taken
        self._done.clear()
        return super().lower(part, inputs, results)

    def nodes(self, part: Part) -> Iterator[Node]:
        live = _live(part)
        for step in steps(part):
            if isinstance(step, Run):
                self._launch_run(step)
            elif step in live and step not in self._done:
                yield step

    def _launch_run(self, run: Run) -> None:
        """Appends a launch of `run`.

        It is compiled for all rows of the bucket and computes those beyond the live ones as well, from whatever lies
        there: each row is made of the same row alone, and nobody reads one that is not live.
        """
        self._where = f"glue of {', '.join(node.name for node in run.outputs)}"
        operands = {node: self.operand(node) for node in run.inputs}
        operands |= {node: self.result(node) for node in run.outputs}
        rows = self.most[TRACED[run.rows]]
        for node, operand in operands.items():
            self._check_whole(node, operand, run.shape(node, rows))
        dtypes = {node.name: TORCH_DTYPES[operand.dtype] for node, operand in operands.items()}
        kernel = GlueKernel.of(run, rows, dtypes)
        arguments = {kernel.parameters[node]: operand for node, operand in operands.items()}
        self._glue[kernel.name] = kernel
        self.assembly.append(Launch(kernel.name, dict(arguments), kernel.signature))

    def _check_whole(self, node: Node, operand: Operand, shape: tuple[int, ...]) -> None:
        """Holds that `operand` is as glue's kernels take one: `shape`, dense, at a multiple of ALIGNMENT."""
        width = prod(shape[1:])
        dense = not operand.count or len(shape) == 1 or operand.stride == width
        if not dense or alignment(operand.offset) < ALIGNMENT:
            raise self.refusal(
                f"{node.name} is {width} of {operand.stride} columns, {operand.offset} bytes behind the first; "
                "make it the result of an operator"
            )

    def launch(self, kernel: str, work: Work, /, **pointers: Operand | None) -> None:
        self.assembly.launch(kernel, work, **pointers)

    def wait(self, node: Node, emit: Callable[[], None]) -> None:
        """Puts an operator off until somebody reads its result; `take` may then do its work elsewhere."""
        self._waiting[node] = emit

    def waits(self, value: Any) -> bool:
        return value in self._waiting

    def take(self, value: Any, target: Any, *, num_readers: int = 1) -> Node | None:
        """The waiting node of operator `target` behind `value`, to be done by the caller, if nobody else reads it."""
        return value if self.take_all([value], target, num_readers=num_readers) else None

    def take_all(self, values: Sequence[Any], target: Any, *, num_readers: int = 1) -> bool:
        """Takes the nodes behind all of `values`, and none unless all wait and are read by nobody else.

        The caller stands for `num_readers` operators that read each of them.
        """
        waiting = all(value in self._waiting and value.target is target for value in values)
        free = waiting and all(len(readers(value)) == num_readers for value in values)
        for value in values if free else ():
            self._waiting.pop(value, None)
        return free

    def done(self, *nodes: Node) -> None:
        """Operators further on whose work is done already: their own rules are not asked any more."""
        self._done.update(nodes)

    def operand(self, value: Any) -> Operand:
        x = self._as_made(value)
        if x.parts > 1:
            self._values[value] = self._summed(x, self.scratch(x.shape, self.stored(value, x.dtype)))
        return self._values[value]

    def output(self, value: Any) -> Operand:
        return self._as_made(value)

    def rows(self, value: Any) -> Operand:
        """An operand that holds values per row of the pass, in fp32 or already rounded."""
        return self._checked_rows(value, self.operand(value))

    def addends(self, value: Any) -> Operand:
        """As `rows`, for a kernel that takes values in `Operand.parts`."""
        return self._checked_rows(value, self._as_made(value))

    def in_parts(self, node: Node, parts: int) -> Operand:
        """Scratch for a node's output in `parts`, to be given to `keep` when it is made."""
        rows, *rest = node.meta["val"].shape
        return replace(self.scratch((rows, parts, *rest), "fp32"), shape=(rows, *rest), parts=parts)

    def keep(self, node: Node, operand: Operand) -> None:
        """Makes `operand`, in parts, a node's output; where that has a place chosen beforehand, the sum goes there."""
        if chosen := self._values.get(node):
            self._summed(operand, chosen)
        else:
            self._values[node] = operand

    def _as_made(self, value: Any) -> Operand:
        if emit := self._waiting.pop(value, None) if isinstance(value, Node) else None:
            emit()
        return super().operand(value)

    def _summed(self, x: Operand, y: Operand) -> Operand:
        work = add_parts_work(self.most[x.count], width(x), x.parts, x.stride, y.stride)
        self.launch("add_parts", work, x=x, count=self.count(x), y=y)
        return y

    def _checked_rows(self, value: Any, x: Operand) -> Operand:
        if not x.count or x.dtype not in ("fp32", self.compute):
            raise self.refusal(f"{value} holds no rows of the pass")
        return x

    def stored(self, value: Any, dtype: str) -> str:
        rounded = dtype == "fp32" and isinstance(value, Node) and bool(value.users) and _only_rounded(value)
        return self.compute if rounded else dtype

    def buffer(self, count: str, *widths: int, dtype: str = "fp32") -> Operand:
        """Scratch of `widths` values for each of the most rows or outputs."""
        return self.scratch(({"rows": ROWS, "outputs": OUTPUTS}[count], *widths), dtype)

    def page(self, cache: Operand) -> int:
        """Elements from one page of `cache` to the next, the model's or a drafter's own."""
        g = self.io.geometry
        nbytes = g.drafter.page_bytes if g.drafter and cache.place == "draft_kv" else g.page_bytes
        return nbytes // ITEM_BYTES[cache.dtype]

    def cover(self) -> int:
        """Positions that attention's grid must reach: the rows of a verify may stand behind the last of the context."""
        return self.context + (MAX_TREE_ROWS if self.context == self.io.geometry.context_length else 0)


def _live(part: Part) -> set[Node]:
    """The nodes that write somewhere or that one of these, or the part's output, reads."""
    live: set[Node] = set()
    for node in reversed(part.graph.nodes):
        schema = getattr(node.target, "_schema", None)
        writes = schema is not None and schema.is_mutable
        if node.op in ("placeholder", "output") or writes or not live.isdisjoint(node.users):
            live.add(node)
    return live


def _only_rounded(value: Node) -> bool:
    return all(
        _only_rounded(user)
        if user.target in RESHAPES
        else user.target in ROUNDING and user.args.index(value) == ROUNDING[user.target]
        for user in value.users
    )
