"""What a run of glue is to programs: a kernel known by what it computes, whatever its nodes are called.

Layers and programs share it. It is compiled late, for that needs a GPU. Knows nothing of launches and their order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from hashlib import sha256
from typing import Any

import torch
from torch.fx import Node
from torch.fx.node import map_arg

from tandem.compile.cuda import glue_compile
from tandem.compile.cuda.glue import Run
from tandem.compile.cuda.glue_compile import GlueLaunch
from tandem.kernels.signature import Param, Signature


@dataclass(frozen=True, slots=True)
class GlueKernel:
    """A run for exactly `rows` rows, its operands of `dtypes` by node name. Equal where `text` is.

    Its parameters are `x0`, `x1`, ... for the run's inputs in order and `y0`, `y1`, ... for its outputs.
    """

    text: str
    run: Run = field(compare=False, repr=False)
    rows: int = field(compare=False)
    dtypes: Mapping[str, torch.dtype] = field(compare=False, repr=False)

    @classmethod
    def of(cls, run: Run, rows: int, dtypes: Mapping[str, torch.dtype]) -> GlueKernel:
        return cls(_text(run, rows, dtypes), run, rows, dtypes)

    @property
    def name(self) -> str:
        """What launches call it: no kernel of the table has such a name."""
        return f"glue {sha256(self.text.encode()).hexdigest()}"

    @property
    def parameters(self) -> dict[Node, str]:
        """Parameter by operand of the run."""
        named = {node: f"x{i}" for i, node in enumerate(self.run.inputs)}
        return named | {node: f"y{i}" for i, node in enumerate(self.run.outputs)}

    @property
    def signature(self) -> Signature:
        return tuple(Param(name, "in" if name[0] == "x" else "out") for name in self.parameters.values())

    def compile(self) -> list[GlueLaunch]:
        """Its launches on the current GPU; their arguments are parameters or constants. Raises as `compile_run`."""
        names = {node.name: parameter for node, parameter in self.parameters.items()}
        return [
            replace(launch, arguments=tuple(a if isinstance(a, bytes) else names[a] for a in launch.arguments))
            for launch in glue_compile.compile_run(self.run, self.rows, self.dtypes)
        ]


def compile_kernels(
    kernels: Iterable[GlueKernel], device: int, advance: Callable[[], None] = lambda: None
) -> dict[GlueKernel, list[GlueLaunch]]:
    """Every kernel once, on GPU `device`; `advance` hears of each that is done."""
    done: dict[GlueKernel, list[GlueLaunch]] = {}
    for kernel in dict.fromkeys(kernels):
        with torch.cuda.device(device):
            done[kernel] = kernel.compile()
        advance()
    return done


def _text(run: Run, rows: int, dtypes: Mapping[str, torch.dtype]) -> str:
    """The run's module as text, its nodes numbered."""
    numbers: dict[Node, str] = {}
    operands = iter(run.inputs)
    lines: list[str] = []
    for node in run.module(rows, dtypes).graph.nodes:
        if node.op == "placeholder":
            given = next(operands)
            done = f"{dtypes[given.name]} {run.shape(given, rows)}"
        else:
            args: Any = map_arg((node.args, node.kwargs), numbers.__getitem__)
            done = f"{node.target} {args}"
        numbers[node] = f"%{len(lines)}"
        lines.append(f"{numbers[node]} = {done}")
    return "\n".join(lines)
