"""Rotary position: the two halves of a head's first dimensions are turned by the angle of the row's position."""

from __future__ import annotations

import torch
from torch import Tensor

from tandem.kernels.precision import compute_dtype


@torch.library.custom_op("tandem::rotary", mutates_args=())
def rotary(x: Tensor, cos: Tensor, sin: Tensor, position: Tensor) -> Tensor:
    """x [R, heads, D], cos and sin [C, rot / 2], position [R] int32 -> [R, heads, D].

    Dimension i is paired with i + rot / 2; dimensions from rot on pass through.
    """
    dtype, half = compute_dtype(x), cos.shape[1]
    cos = cos[position.long(), None].to(dtype)  # [R, 1, rot / 2]
    sin = sin[position.long(), None].to(dtype)
    x = x.to(dtype)
    first, second, rest = x[..., :half], x[..., half : 2 * half], x[..., 2 * half :]
    return torch.cat((first * cos - second * sin, second * cos + first * sin, rest), dim=-1)


@rotary.register_fake
def _(x: Tensor, cos: Tensor, sin: Tensor, position: Tensor) -> Tensor:
    return x.new_empty(x.shape, dtype=compute_dtype(x))
