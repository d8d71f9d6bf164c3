"""Root mean square norm, alone, fused with the residual add before it, and with a gate behind it."""

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


@torch.library.custom_op("tandem::gated_rms_norm", mutates_args=())
def gated_rms_norm(x: Tensor, gate: Tensor, weight: Tensor, eps: float, rounded: bool) -> Tensor:
    """x and gate [R, heads, D], weight [D] -> rms_norm(x) * silu(gate), [R, heads, D].

    With `rounded` the norm is rounded to bfloat16 before it meets the gate, as models trained in bfloat16 have it.
    """
    normed = _normed(x.to(compute_dtype(x)), weight, eps)
    kept = normed.to(torch.bfloat16).to(normed.dtype) if rounded else normed
    return kept * torch.nn.functional.silu(gate.to(normed.dtype))


@gated_rms_norm.register_fake
def _(x: Tensor, gate: Tensor, weight: Tensor, eps: float, rounded: bool) -> Tensor:
    return x.new_empty(x.shape, dtype=compute_dtype(x))
