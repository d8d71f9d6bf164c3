"""Embedding: a row of the table per token."""

from __future__ import annotations

import torch
from torch import Tensor

from tandem.kernels.precision import compute_dtype


@torch.library.custom_op("tandem::embedding", mutates_args=())
def embedding(token: Tensor, weight: Tensor) -> Tensor:
    """token [R] int32, weight [V, H] -> [R, H] float32 (float64 from a float64 weight)."""
    return weight[token.long()].to(compute_dtype(weight))


@embedding.register_fake
def _(token: Tensor, weight: Tensor) -> Tensor:
    return weight.new_empty((token.shape[0], weight.shape[1]), dtype=compute_dtype(weight))
