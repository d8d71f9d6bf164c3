"""The likeliest tokens of rows of logits by the kernels of `tandem.kernels.cuda.top_k`, by the interpreter or a GPU."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch

from tandem.kernels.cuda.top_k import CHUNK, top_k_chunks, top_k_partial_work, top_k_work
from tests.kernels.cuda.interpreter import interpreted, run

__all__ = ["CHUNK", "Found", "likeliest"]

Launch = Callable[..., None]
"""Takes a kernel's name, its work, and tensors by the signature's names."""


class Found(NamedTuple):
    token: np.ndarray  # [O, K] int32
    logit: np.ndarray  # [O, K] float32
    lse: np.ndarray  # [O] float32


def by_interpreter(kernel: str, work: Any, **pointers: Any) -> None:
    run(getattr(interpreted("top_k"), kernel), work, **pointers)


def likeliest(logits: np.ndarray, top: int, *, most: int = 0, launch: Launch = by_interpreter) -> Found:
    """Of logits [O, V] in a pass for `most` rows (default: so many); what stands behind the rows must stay."""
    (count, width), rows = logits.shape, max(most, len(logits))
    stride, chunks = width + 3, top_k_chunks(width)
    held = torch.full((rows, stride), torch.nan)
    held[:count, :width] = torch.from_numpy(logits)
    filled = torch.tensor([count], dtype=torch.int32)
    first = torch.full((rows, chunks, top), -7, dtype=torch.int64)
    peak, sums = torch.full((2, rows, chunks), torch.nan)
    token, logit = torch.full((rows, top), -7, dtype=torch.int32), torch.full((rows, top), torch.nan)
    lse = torch.full((rows,), torch.nan)
    kept = {"first": first, "peak": peak, "sum": sums, "count": filled, "logits": held}
    launch("top_k_partial", top_k_partial_work(rows, width, stride, top), **kept)
    launch("top_k", top_k_work(rows, width, stride, top), token=token, logit=logit, lse=lse, **kept)
    assert (token[count:] == -7).all() and logit[count:].isnan().all() and lse[count:].isnan().all()
    assert (first[count:] == -7).all() and peak[count:].isnan().all()
    return Found(token[:count].numpy(), logit[:count].numpy(), lse[:count].numpy())
