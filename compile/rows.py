"""Weights row by row, as checkpoints hold them: what is looked up by row on every device, and all that GPUs multiply.

Knows nothing of files or checkpoints. The same names as `tandem.compile.cpu.panels`, which is another layout.
"""

from __future__ import annotations

from math import prod

import numpy as np
import torch
from torch import Tensor

from tandem.compile.profile import Format

SAFETENSORS: dict[Format, str] = {"fp32": "F32", "bf16": "BF16"}
ITEM_BYTES: dict[Format, int] = {"fp32": 4, "bf16": 2}


def stored_shape(shape: tuple[int, ...], form: Format) -> tuple[int, ...]:
    """A parameter keeps its shape."""
    return shape


def stored_bytes(shape: tuple[int, ...], form: Format) -> int:
    """Size of a parameter as stored."""
    return prod(shape) * ITEM_BYTES[form]


def pack(weight: Tensor, form: Format) -> np.ndarray:
    """A parameter as stored, bf16 as uint16 bits."""
    if form == "bf16":
        return weight.to(torch.bfloat16).contiguous().cpu().view(torch.uint16).numpy()
    return weight.float().contiguous().cpu().numpy()
