"""Embedding: a row of the table per token, the definition of `tandem.kernels.embedding`."""

from __future__ import annotations

import triton
import triton.language as tl

from tandem.kernels.cuda.launch import Work, kernel, work
from tandem.kernels.cuda.order import begin

BLOCK = 1024


@kernel("<token <weight <count >y")
@triton.jit
def embedding(token, weight, count, y, WIDTH: tl.constexpr, BLOCK: tl.constexpr, PDL: tl.constexpr):
    """token int32 [rows], weight [V, WIDTH], count int32 [1] -> y fp32 [rows, WIDTH]; grid (rows, blocks)."""
    rows = begin(count, PDL)
    row = tl.program_id(0)
    if row < rows:
        i = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
        inside = i < WIDTH
        value = tl.load(weight + tl.load(token + row).to(tl.int64) * WIDTH + i, mask=inside, other=0.0)
        tl.store(y + row.to(tl.int64) * WIDTH + i, value.to(y.dtype.element_ty), mask=inside)


def embedding_work(rows: int, width: int) -> Work:
    """Work of `embedding` for `rows` tokens."""
    return work((rows, -(-width // BLOCK)), WIDTH=width, BLOCK=BLOCK)
