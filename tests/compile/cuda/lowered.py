"""Small functions over the inputs of a pass, exported and lowered for a GPU; tiny models; stand-ins for cubins."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from tandem.artifacts.io import Geometry, IoLayout
from tandem.artifacts.weights import MappedWeights
from tandem.compile.assembly import Assembly, Buffer, Launch, Operand
from tandem.compile.checkpoints.open import open_checkpoint
from tandem.compile.cuda import rows as row_layout
from tandem.compile.cuda.composer import CudaComposer
from tandem.compile.cuda.lowering import CudaLowering
from tandem.compile.cuda.target import CudaTarget
from tandem.compile.drafters import Drafter, Mtp
from tandem.compile.models.families import resolve
from tandem.compile.profile import find_profile
from tandem.compile.store import write_weights
from tandem.compile.trace import BLOCKS, LANES, OUTPUTS, PAGES, ROWS, export_part
from tandem.kernels.cuda.build import Cubin, Variant
from tandem.kernels.cuda.table import KERNELS
from tests.artifacts.cuda_sample import GPU
from tests.compile.models.dflash2_oracle import make_drafter as write_drafter
from tests.tiny import make_checkpoint
from tests.tiny_drafter import drafter_of
from tests.tiny_hybrid import add_mtp

WIDTH, HEADS, HEAD_DIM, POSITIONS = 32, 2, 16, 100
PLANE = 1, 2 * HEAD_DIM
HIDDEN = 2
"""Pointers that a stand-in for a kernel takes behind its own."""
IO = IoLayout(Geometry(256, 333, 128, 32, 8, 64, 64 * 2 * PLANE[1], (PLANE, PLANE)))


class Inputs(NamedTuple):
    """What a function is given: `x` and `z` [R, 32] fp32, two heads of 16; a kv head of 16; tables of 8 angles."""

    x: Tensor
    z: Tensor
    position: Tensor
    lane: Tensor
    slot: Tensor
    prefix: Tensor
    ancestor: Tensor
    block_table: Tensor
    output_row: Tensor
    cos: Tensor
    sin: Tensor
    k_cache: Tensor
    v_cache: Tensor


class Weights(NamedTuple):
    """`square` [32, 32], `wide` [64, 32], `vector` [32], `long` [64]."""

    square: Tensor
    wide: Tensor
    vector: Tensor
    long: Tensor


Function = Callable[[Inputs, Weights], Any]


class Wrapped(nn.Module):
    def __init__(self, function: Function, matrix: torch.dtype) -> None:
        super().__init__()
        self.function = function
        for name, shape in {"square": (32, 32), "wide": (64, 32), "vector": (32,), "long": (64,)}.items():
            dtype = matrix if len(shape) == 2 else torch.float32
            setattr(self, name, nn.Parameter(torch.empty(shape, dtype=dtype), requires_grad=False))

    def forward(self, inputs: Inputs) -> Any:
        return self.function(inputs, Weights(self.square, self.wide, self.vector, self.long))


def example(cache: torch.dtype) -> Inputs:
    def ids(*shape: int) -> Tensor:
        return torch.empty(shape, dtype=torch.int32)

    x, table = torch.empty(ROWS, WIDTH), torch.empty(POSITIONS, HEAD_DIM // 2)
    return Inputs(
        x, x.clone(), ids(ROWS), ids(ROWS), ids(ROWS), ids(ROWS), ids(ROWS, 32), ids(LANES, BLOCKS), ids(OUTPUTS),
        table, table.clone(),
        torch.empty(PAGES, 1, HEAD_DIM, 64, dtype=cache), torch.empty(PAGES, 1, 64, HEAD_DIM, dtype=cache),
    )  # fmt: skip


def operands(most: int, matrix: str) -> dict[str, Operand]:
    """Where the inputs lie: rows in scratch, numbers in their fields, weights one behind another."""
    traced: dict[str, tuple[int, str]] = {"output_row": (OUTPUTS, "outputs")}
    found = {}
    for name in ("position", "lane", "slot", "prefix", "ancestor", "block_table", "output_row"):
        field, (size, count) = IO.fields[name], traced.get(name, (ROWS, "rows"))
        shape = (size, *field.shape[1:])
        found[name] = Operand("io", field.offset, field.nbytes, shape, field.shape[-1], count, "int32")
    for name in "xz":
        buffer = Buffer(most * WIDTH * 4)
        found[name] = Operand(buffer, 0, buffer.nbytes, (ROWS, WIDTH), WIDTH, "rows")
    cells = {"square": (32, 32), "wide": (64, 32), "vector": (32,), "long": (64,), "cos": (100, 8), "sin": (100, 8)}
    for i, (name, shape) in enumerate(cells.items()):
        dtype = matrix if name in ("square", "wide") else "fp32"
        found[name] = Operand("weights", 8192 * i, 8192, shape, shape[-1], dtype=dtype)
    for i, name in enumerate(("k_cache", "v_cache")):
        shape = (0, 1, HEAD_DIM, 64) if name == "k_cache" else (0, 1, 64, HEAD_DIM)
        found[name] = Operand("kv", 2048 * i, 2048, shape, dtype=matrix)
    return found


def lowering(rows: int = 8, compute: str = "bf16") -> CudaLowering:
    assembly = Assembly({name: kernel.signature for name, kernel in KERNELS.items()})
    return CudaLowering(assembly, IO, rows=rows, context=256, layers=1, compute=compute)


def launches(function: Function, rows: int = 8, compute: str = "bf16") -> list[Launch]:
    """What `function` becomes for a bucket of `rows` rows."""
    dtype = torch.bfloat16 if compute == "bf16" else torch.float32
    with torch.device("meta"):
        part = export_part(Wrapped(function, dtype), example(dtype))
    low = lowering(rows, compute)
    low.lower(part, operands(rows, compute))
    return list(low.assembly.launches)


def names(found: list[Launch]) -> list[str]:
    return [launch.kernel for launch in found]


def composer(
    folder: Path,
    family: str = "llama",
    profile: str = "bf16",
    context_length: int = 256,
    *,
    drafter: bool = False,
    block: dict[str, Any] | None = None,
    **overrides: Any,
) -> CudaComposer:
    """A tiny model of `family`, its weights written into `folder` behind its checkpoint; `overrides` as there.

    A `drafter` is the layer that such a checkpoint gets for it, or one of blocks, of the config `block`.
    """
    made = make_checkpoint(folder / "checkpoint", family, **overrides)
    drafts: Drafter | None = None
    if block is not None:
        write_drafter(folder / "drafter", block)
        drafts = drafter_of(folder / "drafter")
    elif drafter:
        add_mtp(made)
        drafts = Mtp()
    checkpoint, chosen = open_checkpoint(str(made)), find_profile(profile)
    spec, path = resolve(checkpoint.config), folder / "weights"
    write_weights(spec, chosen, checkpoint, path, layout=row_layout, context_length=context_length, drafter=drafts)
    geometry = CudaTarget(GPU).geometry(spec, chosen, context_length, drafter=drafts)
    return CudaComposer(spec, chosen, geometry, MappedWeights(path), block=drafts.block if drafts else None)


def fake(variant: Variant, *, data: Callable[[Variant], object] = repr) -> Cubin:
    """What stands in for the compiler: bytes that are one kernel's own, or whatever `data` makes of it."""
    given = sum(pointer is not None for pointer in variant.pointers)
    sizes = (8,) * (given + HIDDEN)
    threads = 32 * variant.work.num_warps
    return Cubin(repr(data(variant)).encode(), variant.kernel, sizes, HIDDEN, 1024, threads)


def argument(launch: Launch, name: str) -> Operand:
    value = launch.arguments[name]
    assert isinstance(value, Operand)
    return value


def constant(launch: Launch, name: str) -> Any:
    assert launch.work is not None
    return dict(launch.work.constants)[name]
