"""Weights in the layout that the kernels read: panels of 32 outputs, rounded to the profile's format.

Knows nothing of files or checkpoints. Letters: N outputs, K inputs.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

PANEL = 32
SAFETENSORS = {torch.float32: "F32", torch.bfloat16: "BF16"}


def packed_shape(shape: tuple[int, ...]) -> tuple[int, ...]:
    """A matrix [N, K] becomes panels [ceil(N / 32), K, 32]; a vector stays as it is."""
    return shape if len(shape) == 1 else (-(-shape[0] // PANEL), shape[1], PANEL)


def stored_dtype(shape: tuple[int, ...], matrix: torch.dtype) -> torch.dtype:
    """Matrices take the profile's format, vectors (norms, biases) are fp32."""
    return matrix if len(shape) == 2 else torch.float32


def pack(weight: Tensor, matrix: torch.dtype) -> np.ndarray:
    """A parameter as stored: fp32 arrays, or bf16 as uint16 bits. Rows that fill the last panel are zero.

    A bf16 panel row holds outputs j and 16 + j as neighbours, so that a shift and a mask widen 32 of them.
    """
    dtype = stored_dtype(tuple(weight.shape), matrix)
    if weight.dim() == 1:
        return weight.to(dtype).contiguous().numpy()
    num_panels, k, _ = packed_shape(tuple(weight.shape))
    panels = torch.zeros(num_panels * PANEL, k, dtype=dtype)
    panels[: weight.shape[0]] = weight.to(dtype)
    panels = panels.view(num_panels, PANEL, k).transpose(1, 2)  # [N / 32, K, 32]
    if dtype is torch.float32:
        return panels.contiguous().numpy()
    pairs = panels.reshape(num_panels, k, 2, PANEL // 2).transpose(2, 3)  # [N / 32, K, 16, 2]
    return pairs.contiguous().view(torch.uint16).view(num_panels, k, PANEL).numpy()
