"""The output gate of attention: each value times the sigmoid of its gate."""

from __future__ import annotations

import torch
from torch import Tensor

from tandem.kernels.precision import compute_dtype


@torch.library.custom_op("tandem::sigmoid_gate", mutates_args=())
def sigmoid_gate(x: Tensor, gate: Tensor) -> Tensor:
    """x and gate [R, N] -> x * sigmoid(gate), [R, N]."""
    dtype = compute_dtype(x)
    return x.to(dtype) * torch.sigmoid(gate.to(dtype))


@sigmoid_gate.register_fake
def _(x: Tensor, gate: Tensor) -> Tensor:
    return x.new_empty(x.shape, dtype=compute_dtype(x))
