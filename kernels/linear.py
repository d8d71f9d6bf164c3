"""Linear: x W^T + b. The weight is upcast to the precision of the input's arithmetic, never the input rounded."""

from __future__ import annotations

import torch
from torch import Tensor

from tandem.kernels.precision import compute_dtype


@torch.library.custom_op("tandem::linear", mutates_args=())
def linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """x [R, K], weight [N, K] (float32, bfloat16 or float64), bias [N] or none -> [R, N]."""
    dtype = compute_dtype(x)
    y = x.to(dtype) @ weight.to(dtype).T
    return y if bias is None else y + bias.to(dtype)


@linear.register_fake
def _(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    return x.new_empty((x.shape[0], weight.shape[0]), dtype=compute_dtype(x))
