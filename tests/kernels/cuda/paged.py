"""A paged cache in the CUDA layout for tests: poisoned pages dealt to lanes in random order, two layers a page."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from tandem import kernels

PAGE = 64
ANCESTORS = 32
BEYOND = 2**30
"""An index that must never be followed."""


def ints(values: Sequence[int]) -> Tensor:
    return torch.tensor(list(values), dtype=torch.int32)


class Paged:
    """Keys and values of `lanes` lanes with `blocks` pages each, in the second of two layers; NaN where none is."""

    layers, layer = 2, 1

    def __init__(
        self, kv_heads: int, head_dim: int, dtype: torch.dtype, lanes: int = 1, blocks: int = 4, seed: int = 0
    ) -> None:
        self.kv_heads, self.head_dim, num_pages = kv_heads, head_dim, lanes * blocks + 1
        self.memory = torch.full((num_pages, self.layers, 2, kv_heads, PAGE, head_dim), torch.nan, dtype=dtype)
        order = torch.randperm(num_pages, generator=torch.Generator().manual_seed(seed))[: lanes * blocks]
        self.table = torch.full((lanes, blocks + 2), BEYOND, dtype=torch.int32)
        self.table[:, :blocks] = order.view(lanes, blocks)

    @property
    def page(self) -> int:
        """Elements from page to page."""
        return self.memory[0].numel()

    def plane(self, part: int, layer: int | None = None) -> Tensor:
        """What the cache pointers point to: K (0) or V (1) of a layer, from page 0 on."""
        return self.memory.view(-1)[self.memory[0, self.layer if layer is None else layer, part].storage_offset() :]

    def values(self, part: int) -> Tensor:
        """[pages, kv_heads, PAGE, head_dim]"""
        return self.memory[:, self.layer, part]

    def place(self, lane: int, slot: int) -> tuple[int, int]:
        return int(self.table[lane, slot // PAGE]), slot % PAGE

    def put(self, lane: int, slots: Sequence[int], k: Tensor, v: Tensor) -> None:
        """k and v [slots, kv_heads, head_dim]"""
        for i, slot in enumerate(slots):
            page, place = self.place(lane, slot)
            self.values(0)[page, :, place], self.values(1)[page, :, place] = k[i], v[i]

    def reference(
        self, q: Tensor, position: Tensor, lane: Tensor, prefix: Tensor, ancestor: Tensor, scale: float, tree: bool
    ) -> Tensor:
        """The operator's definition in float64 over this cache; q [rows, heads, head_dim]."""
        k, v = (self.values(part).double() for part in range(2))
        return kernels.attention(
            q.double(), k.transpose(2, 3), v, position, lane, prefix, ancestor, self.table, scale, tree
        )
