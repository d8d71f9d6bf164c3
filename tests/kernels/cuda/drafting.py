"""Operators of draft blocks for tests: passes of several blocks through the Triton kernels, and their definitions.

Around every row that is asked for lie rows and columns that no kernel may read or write.
"""

# ruff: noqa: E741 - m, l and acc are what every paper on online softmax calls them.
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from tandem import kernels
from tests.kernels.cuda.attending import filled
from tests.kernels.cuda.interpreter import interpreted, run
from tests.kernels.cuda.paged import BEYOND, Paged, ints

SPARE = 3
"""Rows of a bucket behind the last row asked for."""
SCALE = 0.25


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def _padded(x: Tensor, rows: int, columns: int = 0) -> Tensor:
    """`x` [R, width] or [R] in the corner of what no kernel may follow."""
    beyond = BEYOND if x.dtype == torch.int32 else torch.nan
    held = torch.full((rows, *(size + columns for size in x.shape[1:])), beyond, dtype=x.dtype)
    held[: len(x)][(slice(None), *(slice(size) for size in x.shape[1:]))] = x
    return held


@dataclass(frozen=True, slots=True)
class Blocks:
    """Rows of blocks side by side: of each its position, lane and prefix."""

    position: Tensor
    lane: Tensor
    prefix: Tensor
    size: int

    @classmethod
    def of(cls, anchors: Sequence[tuple[int, int]], size: int) -> Blocks:
        """Blocks of `size` rows, of (lane, the anchor's position) each."""
        lane, prefix = (ints([one for anchor in anchors for one in [anchor[i]] * size]) for i in range(2))
        return cls(prefix + ints([*range(size)] * len(anchors)), lane, prefix, size)

    def of_rows(self, rows: Sequence[int] | slice) -> Blocks:
        return Blocks(self.position[rows], self.lane[rows], self.prefix[rows], self.size)

    @property
    def slots(self) -> Tensor:
        """The rows that are no anchors."""
        return (self.position != self.prefix).nonzero()[:, 0].to(torch.int32)

    def where(self, rows: int) -> dict[str, Tensor]:
        return {name: _padded(getattr(self, name), rows) for name in ("position", "prefix")}


def block_cache(
    anchors: Sequence[tuple[int, int]], size: int, window: int, kv_heads: int, head_dim: int, dtype: torch.dtype,
    seed: int = 0,
) -> Paged:  # fmt: skip
    """What the blocks see, and NaN before it and behind."""
    lanes, blocks = max(lane for lane, _ in anchors) + 1, max(at + size for _, at in anchors) // 64 + 1
    cache = Paged(kv_heads, head_dim, dtype, lanes=lanes, blocks=blocks, seed=seed)
    for lane, at in anchors:
        slots = range(max(0, at - window + 1), at + size)
        filled(cache, lane, slots, slots)
    return cache


def attend_block(cache: Paged, q: Tensor, blocks: Blocks, window: int, *, bucket: int = 0, context: int = 0) -> Tensor:
    """q [R, heads, D] -> [R, heads, D] fp32, through partial results that are NaN before."""
    module, (count, heads, head_dim) = interpreted("draft_block"), q.shape
    bucket = bucket or count + SPARE
    context = context or int(blocks.prefix.max() if count else 0) + blocks.size
    split, merge = module.block_attention_works(
        rows=bucket, heads=heads, kv_heads=cache.kv_heads, head_dim=head_dim, block=blocks.size, window=window,
        context=context, scale=SCALE, q_stride=heads * head_dim + 16, table_stride=cache.table.shape[1],
        page=cache.page, itemsize=cache.memory.itemsize,
    )  # fmt: skip
    spans = module.num_spans(window, blocks.size, context)
    m, l, acc = (torch.full((bucket, heads, spans, *shape), torch.nan) for shape in ((), (), (head_dim,)))
    parts, numbers = {"m": m, "l": l, "acc": acc}, ints([count])
    y, given = torch.full((bucket, heads, head_dim), torch.nan), blocks.where(bucket)
    run(
        module.block_attention_split, split, q=_padded(q.flatten(1).to(cache.memory.dtype), bucket, 16),
        k_cache=cache.plane(0), v_cache=cache.plane(1), lane=_padded(blocks.lane, bucket), block_table=cache.table,
        count=numbers, **given, **parts,
    )  # fmt: skip
    run(module.block_attention_merge, merge, prefix=given["prefix"], count=numbers, y=y, **parts)
    assert y[count:].isnan().all(), "rows that no one asked for were written"
    return y[:count]


def attention_defined(cache: Paged, q: Tensor, blocks: Blocks, window: int) -> Tensor:
    """In float64."""
    k, v = (cache.values(part).double() for part in range(2))
    return kernels.block_attention(
        q.to(cache.memory.dtype).double(), k.transpose(2, 3), v, blocks.position, blocks.lane, blocks.prefix,
        cache.table, SCALE, blocks.size, window,
    )  # fmt: skip


def convolve(
    x: Tensor, delta: Tensor, weight: Tensor, blocks: Blocks, *, bucket: int = 0, out: torch.dtype = torch.float32
) -> Tensor:
    """x [R, parts, C], delta [R, taps, groups], weight [taps, C] -> [R, C]"""
    module, (count, parts, width), (_, taps, groups) = interpreted("draft_block"), x.shape, delta.shape
    bucket = bucket or count + SPARE
    y = torch.full((bucket, width + 5), torch.nan, dtype=out)
    work = module.block_conv_work(
        rows=bucket, width=width, taps=taps, group=width // groups, parts=parts, x_stride=parts * width + 3,
        delta_stride=taps * groups + 2, y_stride=width + 5,
    )  # fmt: skip
    run(
        module.block_conv, work, x=_padded(x.flatten(1), bucket, 3), delta=_padded(delta.flatten(1), bucket, 2),
        weight=weight.flatten(), count=ints([count]), y=y, **blocks.where(bucket),
    )  # fmt: skip
    assert y[count:].isnan().all() and y[:, width:].isnan().all()
    return y[:count, :width]


def convolution_defined(x: Tensor, delta: Tensor, weight: Tensor, blocks: Blocks) -> Tensor:
    """In float64."""
    given = (x.double().sum(1), delta.flatten(1).double(), weight.flatten().double())
    return kernels.block_conv(*given, blocks.position, blocks.prefix, len(weight))


@dataclass(frozen=True, slots=True)
class Slots:
    """What a lattice is made of: of each slot k candidates, their logits, a gate; codebooks [V, J]."""

    blocks: Blocks
    token: Tensor
    candidate: Tensor
    unary: Tensor
    gate: Tensor
    predecessor: Tensor
    successor: Tensor

    @classmethod
    def drawn(
        cls, blocks: Blocks, k: int, rank: int, dtype: torch.dtype = torch.float32, vocabulary: int = 50, seed: int = 0
    ) -> Slots:
        generator, count = torch.Generator().manual_seed(seed), len(blocks.slots)

        def ids(*shape: int) -> Tensor:
            return torch.randint(0, vocabulary, shape, generator=generator, dtype=torch.int32)

        books = [normal(vocabulary, rank, seed=seed + i).to(dtype) for i in (7, 8)]
        numbers = normal(count, k, seed=seed + 1), normal(count, rank, seed=seed + 2)
        return cls(blocks, ids(len(blocks.position)), ids(count, k), *numbers, *books)

    def where(self, slots: int) -> dict[str, Tensor]:
        rows = len(self.blocks.position) + SPARE
        return {"output_row": _padded(self.blocks.slots, slots), **self.blocks.where(rows)}

    def scores(self, slots: int = 0) -> Tensor:
        """[O, k, k] by the kernel, in a bucket of `slots`."""
        module, (count, k), rank = interpreted("lattice"), self.unary.shape, self.gate.shape[1]
        slots = slots or count + SPARE
        score = torch.full((slots, k, k), torch.nan)
        run(
            module.lattice_scores, module.lattice_scores_work(slots=slots, k=k, rank=rank, gate_stride=rank + 3),
            candidate=_padded(self.candidate, slots), unary=_padded(self.unary, slots),
            gate=_padded(self.gate, slots, 3), token=_padded(self.token, len(self.token) + SPARE),
            predecessor=self.predecessor, successor=self.successor, count=ints([count]), score=score,
            **self.where(slots),
        )  # fmt: skip
        assert score[count:].isnan().all()
        return score[:count]

    def defined(self) -> Tensor:
        """In float64."""
        given = (self.candidate, self.unary.double(), self.gate.double(), self.token, *self._where)
        return kernels.lattice_scores(*given, self.predecessor.double(), self.successor.double())

    def walk(self, score: Tensor, slots: int = 0) -> Tensor:
        """[O] by the kernel, for scores of these slots."""
        module, (count, k, _) = interpreted("lattice"), score.shape
        slots = slots or count + SPARE
        greedy, held = torch.full((slots,), -7, dtype=torch.int32), torch.full((slots, k, k), torch.inf)
        held[:count] = score
        work: Any = module.lattice_walk_work(slots, k)
        run(module.lattice_walk, work, score=held, count=ints([count]), greedy=greedy, **self.where(slots))
        assert (greedy[count:] == -7).all()
        return greedy[:count]

    @property
    def _where(self) -> tuple[Tensor, Tensor, Tensor]:
        return self.blocks.slots, self.blocks.position, self.blocks.prefix
