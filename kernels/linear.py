"""Linear: x W^T + b.

How a weight is stored decides what x is rounded to before it meets it (`kernels/cpu/panel.h`): nothing for fp32, bf16
for bf16, whole numbers of -127 to 127 per row (int8) or per group of 32 inputs (int4). Sums are fp32, or exact.
"""

from __future__ import annotations

import torch
from torch import Tensor

from tandem.kernels.precision import compute_dtype


@torch.library.custom_op("tandem::linear", mutates_args=())
def linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """x [R, K], weight [N, K], bias [N] or none -> [R, N].

    The weight is float32, float64, or bfloat16, which x is rounded to as well.
    """
    dtype = compute_dtype(x)
    taken = x.to(torch.bfloat16) if weight.dtype == torch.bfloat16 else x
    y = taken.to(dtype) @ weight.to(dtype).T
    return y if bias is None else y + bias.to(dtype)


@linear.register_fake
def _(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    return x.new_empty((x.shape[0], weight.shape[0]), dtype=compute_dtype(x))
