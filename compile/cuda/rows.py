"""Weights as Triton kernels read them: matrices row by row, as checkpoints hold them, and vectors in fp32.

Knows nothing of files or checkpoints. The same names as `tandem.compile.cpu.panels`, which is the CPU's layout.
"""

from __future__ import annotations

from math import prod

import numpy as np
import torch
from torch import Tensor

from tandem.compile.profile import Format
from tandem.errors import UsageError

SAFETENSORS: dict[Format, str] = {"fp32": "F32", "bf16": "BF16"}
ITEM_BYTES: dict[Format, int] = {"fp32": 4, "bf16": 2}


def require(form: Format) -> None:
    """UsageError for a format that no Triton kernel multiplies."""
    if form not in SAFETENSORS:
        raise UsageError(f"{form} has no CUDA kernels in this build: use --profile bf16 or fp32, or --device cpu")


def stored_shape(shape: tuple[int, ...], form: Format) -> tuple[int, ...]:
    """A parameter keeps its shape."""
    require(form)
    return shape


def stored_bytes(shape: tuple[int, ...], form: Format) -> int:
    """Size of a parameter as stored."""
    require(form)
    return prod(shape) * ITEM_BYTES[form]


def pack(weight: Tensor, form: Format) -> np.ndarray:
    """A parameter as stored, bf16 as uint16 bits."""
    if form == "bf16":
        return weight.to(torch.bfloat16).contiguous().cpu().view(torch.uint16).numpy()
    return weight.float().contiguous().cpu().numpy()
