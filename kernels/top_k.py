"""The likeliest tokens of a row of logits, and the sum of exponentials that makes their logits probabilities."""

from __future__ import annotations

import torch
from torch import Tensor

from tandem.kernels.precision import compute_dtype


@torch.library.custom_op("tandem::top_k", mutates_args=())
def top_k(logits: Tensor, k: int) -> tuple[Tensor, Tensor, Tensor]:
    """logits [O, V] -> (ids [O, k] int32, their logits [O, k], log of the sum of all exponentials [O]).

    They fall; the lower id stands first among equals. k is V at most.
    """
    wide = logits.to(compute_dtype(logits))
    # torch.sort keeps equals in order where it is told to; torch.topk promises no order.
    values, ids = wide.sort(dim=-1, descending=True, stable=True)
    return ids[:, :k].to(torch.int32), values[:, :k].contiguous(), wide.logsumexp(-1)


@top_k.register_fake
def _(logits: Tensor, k: int) -> tuple[Tensor, Tensor, Tensor]:
    rows, dtype = logits.shape[0], compute_dtype(logits)
    return (
        logits.new_empty((rows, k), dtype=torch.int32),
        logits.new_empty((rows, k), dtype=dtype),
        logits.new_empty((rows,), dtype=dtype),
    )
