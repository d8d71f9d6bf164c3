"""Attention passes for tests: rows of several lanes over a paged cache, run through the Triton kernels."""

# ruff: noqa: E741 - m, l and acc are what every paper on online softmax calls them.
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor

from tests.kernels.cuda.interpreter import interpreted, run
from tests.kernels.cuda.paged import ANCESTORS, BEYOND, Paged, ints

SPARE = 3
"""Rows of the bucket behind the last row asked for."""


@dataclass(frozen=True, slots=True)
class Branch:
    """A lane's committed length and the tree behind it: `parent[i] < i`, node 0 the root."""

    prefix: int
    parent: tuple[int, ...]

    def path(self, node: int) -> list[int]:
        return [node] if node == 0 else [*self.path(self.parent[node]), node]


def chain(prefix: int, rows: int) -> Branch:
    return Branch(prefix, tuple(max(0, i - 1) for i in range(rows)))


@dataclass(frozen=True, slots=True)
class Pass:
    """Rows of a pass, all with room behind the last one that holds what no kernel may follow."""

    q: Tensor  # [rows, heads, D]
    position: Tensor
    lane: Tensor
    prefix: Tensor
    ancestor: Tensor  # [rows, 32]

    def row(self, i: int) -> Pass:
        return Pass(*(x[i : i + 1] for x in (self.q, self.position, self.lane, self.prefix, self.ancestor)))


@cache
def _token(seed: int, lane: int, token: int, width: int) -> Tensor:
    generator = torch.Generator().manual_seed((seed * 64 + lane) * 2**20 + token)
    return torch.randn(2, width, generator=generator)


def filled(cache: Paged, lane: int, slots: Sequence[int], tokens: Sequence[int], seed: int = 0) -> None:
    """Keys and values of `tokens`, which depend on seed, lane and token alone, in `slots`."""
    rows = [_token(seed, lane, token, cache.kv_heads * cache.head_dim) for token in tokens]
    k, v = torch.stack(rows).view(len(rows), 2, cache.kv_heads, cache.head_dim).unbind(1)
    cache.put(lane, slots, k, v)


def laid_out(cache: Paged, branches: Sequence[Branch], heads: int, seed: int = 0) -> Pass:
    """Fills lane i with branch i, every node in the slot of its number, and makes the rows of all nodes."""
    rows: list[tuple[int, int, int, list[int]]] = []
    for lane, branch in enumerate(branches):
        slots = range(branch.prefix + len(branch.parent))
        filled(cache, lane, slots, slots, seed)
        for node in range(len(branch.parent)):
            path = branch.path(node)
            slot_list = [*(branch.prefix + i for i in path), *[BEYOND] * (ANCESTORS - len(path))]
            rows.append((lane, branch.prefix, branch.prefix + len(path) - 1, slot_list))
    q = torch.randn(len(rows), heads, cache.head_dim, generator=torch.Generator().manual_seed(seed))
    lane, prefix, position, ancestor = zip(*rows, strict=True)
    return Pass(q, ints(position), ints(lane), ints(prefix), torch.tensor(ancestor, dtype=torch.int32))


def attend(
    cache: Paged, rows: Pass, tree: bool, bucket: int = 0, context: int = 0, tiles: Any = None, scale: float = 0.25
) -> Tensor:
    """[rows, heads, D] in fp32: the two launches over NaN partials; checks that spare rows stay untouched."""
    module, count = interpreted("attention"), len(rows.q)
    bucket = bucket or min(32, count + SPARE)
    context = context or int(rows.position.max()) + 1
    q, y, pointers = _pointers(cache, rows, bucket)
    (first, first_work), (second, second_work) = module.attention_works(
        rows=bucket, heads=q.shape[1], kv_heads=cache.kv_heads, head_dim=cache.head_dim, context=context,
        tree=tree, scale=scale, q_stride=q.stride(0), table_stride=cache.table.shape[1], page=cache.page,
        max_lanes=len(cache.table), itemsize=q.itemsize, tiles=tiles and module.Tiles(*tiles),
    )  # fmt: skip
    heads, groups = q.shape[1], interpreted("groups").num_groups(context)
    m, l, acc = (torch.full((bucket, heads, groups, *shape), torch.nan) for shape in ((), (), (cache.head_dim,)))
    pointers |= {"prefix": _padded(rows.prefix, bucket), "m": m, "l": l, "acc": acc}
    split = {key: value for key, value in pointers.items() if key != "y"}
    wide = first == "attention_wide"
    run(getattr(interpreted("attention_wide") if wide else module, first), first_work, **split)
    if tree:
        run(getattr(module, second), second_work, ancestor=_padded(rows.ancestor, bucket), **pointers)
    else:
        names = ("m", "l", "acc", "position", "count", "y")
        run(getattr(module, second), second_work, **{name: pointers[name] for name in names})
    return _result(y, rows)


def attend_chunk(cache: Paged, rows: Pass, bucket: int, tiles: Any = None, scale: float = 0.25) -> Tensor:
    module = interpreted("attention_chunk")
    q, y, pointers = _pointers(cache, rows, bucket)
    work = module.attention_chunk_work(
        rows=bucket, heads=q.shape[1], kv_heads=cache.kv_heads, head_dim=cache.head_dim, scale=scale,
        q_stride=q.stride(0), table_stride=cache.table.shape[1], page=cache.page, itemsize=q.itemsize,
        tiles=tiles and module.Tiles(*tiles),
    )  # fmt: skip
    run(module.attention_chunk, work, **pointers)
    return _result(y, rows)


def _padded(x: Tensor, bucket: int) -> Tensor:
    """`x` and, behind it, what no kernel may follow."""
    spare = torch.full((bucket - len(x), *x.shape[1:]), BEYOND if x.dtype == torch.int32 else torch.nan, dtype=x.dtype)
    return torch.cat((x, spare))


def _pointers(cache: Paged, rows: Pass, bucket: int) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
    """q [bucket, heads, D] with a stride of its own, y poisoned, and the pointers that all kernels share."""
    count, heads, head_dim = rows.q.shape
    wide = torch.full((bucket, heads * head_dim + 16), torch.nan, dtype=cache.memory.dtype)
    wide[:count, : heads * head_dim] = rows.q.flatten(1)
    q = wide[:, : heads * head_dim].unflatten(1, (heads, head_dim))
    y = torch.full((bucket, heads, head_dim), torch.nan)
    return q, y, {
        "q": q, "k_cache": cache.plane(0), "v_cache": cache.plane(1), "position": _padded(rows.position, bucket),
        "lane": _padded(rows.lane, bucket), "block_table": cache.table, "count": ints([count]), "y": y,
    }  # fmt: skip


def _result(y: Tensor, rows: Pass) -> Tensor:
    assert y[len(rows.q) :].isnan().all(), "rows that no one asked for were written"
    return y[: len(rows.q)]
