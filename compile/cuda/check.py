"""Holds programs of a build against captures of Triton's own launches: one of every shape that differs in its kernels.

Knows nothing of how a capture is read.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from tandem.artifacts.program import Program
from tandem.compile.assembly import Buffer, Operand
from tandem.compile.cuda import capture
from tandem.compile.cuda.programs import Lowered
from tandem.kernels.cuda.table import KERNELS

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "int32": torch.int32}


def check_programs(pairs: Sequence[tuple[Lowered, Program]], device: int) -> int:
    """Captures the programs that `worth_checking` picks and returns how many those are.

    LoweringError names program, node and field where what was written is not what Triton launches.
    """
    picked = worth_checking(pairs)
    with torch.cuda.device(device):
        sizes = {name: max(low.nbytes[name] for low, _ in picked) for name in picked[0][0].nbytes}
        regions = {name: torch.empty(size, dtype=torch.uint8, device="cuda") for name, size in sizes.items()}
        for lowered, program in picked:
            launches = [
                capture.Launch(
                    KERNELS[launch.kernel],
                    launch.work,
                    {param.name: _tensor(launch.arguments[param.name], regions) for param in launch.signature},
                )
                for launch in lowered.launches
                if launch.work is not None
            ]
            capture.check_program(launches, regions, program)
    return len(picked)


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
