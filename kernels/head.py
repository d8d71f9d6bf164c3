"""Around the head: rows picked whose logits are wanted, rows left for a drafter, the largest logit with its lead."""

from __future__ import annotations

import torch
from torch import Tensor

from tandem.kernels.precision import compute_dtype


@torch.library.custom_op("tandem::gather_rows", mutates_args=())
def gather_rows(x: Tensor, row: Tensor) -> Tensor:
    """x [R, H], row [O] int32 -> [O, H]."""
    return x[row.long()]


@gather_rows.register_fake
def _(x: Tensor, row: Tensor) -> Tensor:
    return x.new_empty((row.shape[0], x.shape[1]))


@torch.library.custom_op("tandem::scatter_rows", mutates_args=("ring",))
def scatter_rows(x: Tensor, ring: Tensor, row: Tensor) -> None:
    """x [R, H] goes to rows `row` [R] int32 of ring [N, H], no two to one; -1 goes nowhere."""
    kept = row >= 0
    ring[row[kept].long()] = x[kept].to(ring.dtype)


@scatter_rows.register_fake
def _(x: Tensor, ring: Tensor, row: Tensor) -> None:
    return None


@torch.library.custom_op("tandem::scatter_sum", mutates_args=("ring",))
def scatter_sum(x: Tensor, delta: Tensor, ring: Tensor, row: Tensor) -> None:
    """As `scatter_rows` of x + delta, both [R, H]; ring [N, H] may be some of the columns of a wider one."""
    kept = row >= 0
    dtype = compute_dtype(x)
    ring[row[kept].long()] = (x[kept].to(dtype) + delta[kept].to(dtype)).to(ring.dtype)


@scatter_sum.register_fake
def _(x: Tensor, delta: Tensor, ring: Tensor, row: Tensor) -> None:
    return None


@torch.library.custom_op("tandem::argmax_gap", mutates_args=())
def argmax_gap(logits: Tensor) -> tuple[Tensor, Tensor]:
    """logits [O, V], V at least 2 -> (argmax [O] int32, largest minus second largest [O]); the lowest id wins ties."""
    top = logits.to(compute_dtype(logits)).topk(2, dim=-1).values
    # torch.argmax promises the first of equal values; topk promises no order of ids.
    return logits.argmax(-1).to(torch.int32), top[:, 0] - top[:, 1]


@argmax_gap.register_fake
def _(logits: Tensor) -> tuple[Tensor, Tensor]:
    rows = logits.shape[0]
    return logits.new_empty((rows,), dtype=torch.int32), logits.new_empty((rows,), dtype=compute_dtype(logits))
