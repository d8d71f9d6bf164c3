"""SwiGLU: silu(gate) * up, gate and up lying side by side in one row."""

from __future__ import annotations

import torch
from torch import Tensor

from tandem.kernels.precision import compute_dtype


@torch.library.custom_op("tandem::swiglu", mutates_args=())
def swiglu(gate_up: Tensor) -> Tensor:
    """gate_up [R, 2 F] -> [R, F]: silu of the first half times the second half."""
    gate, up = gate_up.to(compute_dtype(gate_up)).chunk(2, dim=-1)
    return torch.nn.functional.silu(gate) * up


@swiglu.register_fake
def _(gate_up: Tensor) -> Tensor:
    return gate_up.new_empty((gate_up.shape[0], gate_up.shape[1] // 2), dtype=compute_dtype(gate_up))
