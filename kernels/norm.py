"""Root mean square norm, alone and fused with the residual add before it."""

from __future__ import annotations

import torch
from torch import Tensor

from tandem.kernels.precision import compute_dtype


def _normed(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    scale = torch.rsqrt(x.square().mean(-1, keepdim=True) + eps)
    return x * scale * weight.to(x.dtype)


@torch.library.custom_op("tandem::rms_norm", mutates_args=())
def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """x [..., H], weight [H] -> [..., H]: x / sqrt(mean(x^2) + eps) * weight over the last dimension."""
    return _normed(x.to(compute_dtype(x)), weight, eps)


@rms_norm.register_fake
def _(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    return x.new_empty(x.shape, dtype=compute_dtype(x))


@torch.library.custom_op("tandem::add_rms_norm", mutates_args=())
def add_rms_norm(x: Tensor, delta: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """x and delta [R, H], weight [H] -> (x + delta, rms_norm(x + delta)), both [R, H]."""
    dtype = compute_dtype(x)
    total = x.to(dtype) + delta.to(dtype)
    return total, _normed(total, weight, eps)


@add_rms_norm.register_fake
def _(x: Tensor, delta: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    dtype = compute_dtype(x)
    return x.new_empty(x.shape, dtype=dtype), x.new_empty(x.shape, dtype=dtype)
