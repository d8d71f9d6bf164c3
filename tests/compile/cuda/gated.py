"""A small module with glue between all its operators, its weights in a file, lowered for row buckets of a GPU."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import softplus

from tandem.artifacts.io import Geometry, IoLayout
from tandem.artifacts.weights import MappedWeights, WeightsWriter
from tandem.compile.assembly import Assembly, Operand
from tandem.compile.cuda import rows as layout
from tandem.compile.cuda.entries import Shape
from tandem.compile.cuda.lowering import CudaLowering
from tandem.compile.cuda.programs import Lowered, lay_out
from tandem.compile.profile import Profile
from tandem.compile.trace import OUTPUTS, ROWS, export_part
from tandem.kernels import argmax_gap, embedding, gather_rows, linear, rms_norm
from tandem.kernels.cuda.table import KERNELS
from tandem.keys import Kind

WIDTH, HEADS, VOCAB, EPS = 48, 3, 80, 1e-5
PLANE = 1, 32
IO = IoLayout(Geometry(256, VOCAB, 64, 32, 2, 64, 2 * 64 * 32, (PLANE, PLANE)))
"""Nothing here is cached; one page of one layer."""
SHAPES = {
    "embedding": (VOCAB, WIDTH), "wide": (2 * WIDTH, WIDTH), "bias": (2 * WIDTH,), "shift": (WIDTH,),
    "norm": (WIDTH // HEADS,), "scale": (HEADS, WIDTH // HEADS), "square": (WIDTH, WIDTH), "head": (VOCAB, WIDTH),
}  # fmt: skip
BUCKETS = (1, 8, 32, 64)
ORDER = (
    *("embedding", "linear", "glue", "rms_norm", "glue", "linear", "glue"),
    *("gather_rows", "glue", "linear", "argmax_partial", "argmax_gap"),
)
"""What `Gated` becomes, by `kind`."""
Buckets = dict[tuple[str, int], Lowered]
"""Its programs by profile and bucket."""


class Gated(nn.Module):
    """token [R], output_row [O] -> logits [O, VOCAB], argmax [O], gap [O]. Values are those that `profile` stores."""

    def __init__(self, profile: Profile) -> None:
        super().__init__()
        self.stored: dict[str, np.ndarray] = {}
        for seed, (name, shape) in enumerate(SHAPES.items()):
            noise, form = (
                torch.randn(shape, generator=torch.Generator().manual_seed(seed)) / 4,
                profile.format(name, shape),
            )
            self.stored[name] = layout.pack(noise, form)
            value = noise.to(torch.bfloat16).float() if form == "bf16" else noise
            setattr(self, name, nn.Parameter(value, requires_grad=False))

    def forward(self, token: Tensor, output_row: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        x = embedding(token, self.embedding)
        both = linear(x, self.wide, self.bias)
        gate, value = both[:, :WIDTH], both[:, WIDTH:]
        h = torch.sigmoid(gate) * softplus(value + self.shift) + x
        heads = rms_norm(h.view(-1, HEADS, WIDTH // HEADS), self.norm, EPS)
        turned = torch.tanh(heads) * self.scale
        h = linear(turned.reshape(-1, WIDTH), self.square, None) + h
        y = gather_rows(h, output_row)
        logits = linear(y * torch.sigmoid(y), self.head, None)
        return logits, *argmax_gap(logits)


def field(name: str, rows: int, count: str, dtype: str = "int32") -> Operand:
    held = IO.fields[name]
    return Operand("io", held.offset, held.nbytes, (rows, *held.shape[1:]), held.shape[-1], count, dtype)


def lowering(rows: int, compute: str) -> CudaLowering:
    assembly = Assembly({name: kernel.signature for name, kernel in KERNELS.items()})
    return CudaLowering(assembly, IO, rows=rows, context=256, layers=1, compute=compute)


def write_weights(module: Gated, profile: Profile, path: Path) -> MappedWeights:
    plan = [(name, layout.SAFETENSORS[profile.format(name, shape)], shape) for name, shape in SHAPES.items()]
    with WeightsWriter(path, plan) as writer:
        for name, data in module.stored.items():
            writer.write(name, data)
    return MappedWeights(path)


def lower(module: Gated, profile: Profile, weights: MappedWeights, rows: int) -> Lowered:
    """The module's program for a bucket of `rows` rows."""
    inputs = {"token": field("token", ROWS, "rows"), "output_row": field("output_row", OUTPUTS, "outputs")}
    for name, shape in SHAPES.items():
        span = weights.offset(name), weights.spans[name].nbytes
        inputs[name] = Operand("weights", *span, shape, shape[-1], dtype=profile.format(name, shape))
    results = [field("logits", OUTPUTS, "outputs", "fp32"), field("argmax", OUTPUTS, "outputs")]
    results.append(field("gap", OUTPUTS, "outputs", "fp32"))
    part = export_part(module, torch.empty(ROWS, dtype=torch.int32), torch.empty(OUTPUTS, dtype=torch.int32))
    low = lowering(rows, profile.matrix)
    low.lower(part, inputs, results)
    sizes = {"weights": len(weights.data), "kv": IO.geometry.page_bytes, "io": IO.nbytes}
    return lay_out(low, Shape((Kind.EXTEND,), 0, rows), sizes)


def kind(name: str) -> str:
    """What a launch's kernel is, whatever it computes or how many rows of it."""
    return "glue" if name.startswith("glue ") else name.removesuffix("_chunk")


def glue_operands(low: Lowered) -> list[dict[str, Operand]]:
    """The operands of each launch of glue by parameter."""
    return [
        {name: value for name, value in launch.arguments.items() if isinstance(value, Operand)}
        for launch in low.launches
        if launch.kernel in low.glue
    ]
