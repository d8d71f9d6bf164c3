"""Holds programs of a build against captures of Triton's own launches: one of every shape that differs in its kernels.

Glue is left out: its launches were read from a capture when they were made. Knows nothing of how a capture is read.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import groupby

import torch

from tandem.artifacts.program import Program
from tandem.compile.assembly import Buffer, Launch, Operand
from tandem.compile.cuda import capture
from tandem.compile.cuda.programs import Lowered
from tandem.errors import LoweringError
from tandem.kernels.cuda.table import KERNELS

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "int32": torch.int32, "int64": torch.int64}


def check_programs(pairs: Sequence[tuple[Lowered, Program]], device: int) -> int:
    """Captures the programs that `worth_checking` picks and returns how many those are.

    LoweringError names program, node and field where what was written is not what Triton launches.
    """
    picked = worth_checking(pairs)
    with torch.cuda.device(device):
        sizes = {name: max(low.nbytes[name] for low, _ in picked) for name in picked[0][0].nbytes}
        regions = {name: torch.empty(size, dtype=torch.uint8, device="cuda") for name, size in sizes.items()}
        for lowered, program in picked:
            for launches, part in stretches(lowered, program):
                capture.check_program([_launch(launch, regions) for launch in launches], regions, part)
        regions.clear()
        torch.cuda.empty_cache()  # the proving process wants as much for itself
    return len(picked)


def stretches(lowered: Lowered, program: Program) -> Iterator[tuple[list[Launch], Program]]:
    """Launches of the table's kernels with no glue between them, and what the program says of these and no others.

    LoweringError where the program does not have such launches and glue by turns as was lowered.
    """
    runs = groupby(lowered.launches, lambda launch: launch.kernel in KERNELS)
    listed = [list(group) for ours, group in runs if ours]
    symbols = [program.kernels[kernel].symbol for kernel in program.launches["kernel"]]
    spans = [list(group) for ours, group in groupby(range(len(symbols)), lambda i: symbols[i] in KERNELS) if ours]
    if len(listed) != len(spans):
        raise LoweringError(f"the program has {len(spans)} stretches without glue, {len(listed)} were lowered")
    for launches, span in zip(listed, spans, strict=True):
        first, end = span[0], span[-1] + 1
        edges = program.edges[(program.edges["source"] >= first) & (program.edges["target"] < end)].copy()
        for name in ("source", "target"):
            edges[name] -= first
        yield launches, replace(program, launches=program.launches[first:end], edges=edges)


def _launch(launch: Launch, regions: dict[str, torch.Tensor]) -> capture.Launch:
    assert launch.work is not None
    arguments = {param.name: _tensor(launch.arguments[param.name], regions) for param in launch.signature}
    return capture.Launch(KERNELS[launch.kernel], launch.work, arguments)


def worth_checking(pairs: Sequence[tuple[Lowered, Program]]) -> list[tuple[Lowered, Program]]:
    """Programs until every kernel that any of them uses has been met, the largest first."""
    met: set[str] = set()
    picked = []
    for lowered, program in sorted(pairs, key=lambda pair: -len(pair[1].kernels)):
        binaries = {kernel.binary for kernel in program.kernels}
        if not binaries <= met:
            picked.append((lowered, program))
            met |= binaries
    return picked


def _tensor(value: object, regions: dict[str, torch.Tensor]) -> torch.Tensor | None:
    if not isinstance(value, Operand):
        return None
    inside = isinstance(value.place, Buffer)
    offset = value.offset + (value.place.offset if isinstance(value.place, Buffer) else 0)
    return capture.place(regions, "scratch" if inside else str(value.place), offset, DTYPES[value.dtype])
