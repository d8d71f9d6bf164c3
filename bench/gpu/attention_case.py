"""Attention passes on a device for its tuner: a paged cache, rows behind a context, and our launches over them.

Knows nothing of what is worth a try, nor of time.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import torch
import triton
from torch import Tensor
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from triton.experimental.gluon._runtime import GluonASTSource

from tandem.kernels.cuda.attention import Tiles, attention_works
from tandem.kernels.cuda.attention_chunk import attention_chunk_work
from tandem.kernels.cuda.launch import Work
from tandem.kernels.cuda.table import KERNELS

PAGE, ANCESTORS, MAX_LANES, MAX_BLOCKS = 64, 32, 8, 640
FP32, INT32 = ("m", "l", "acc"), ("position", "lane", "prefix", "ancestor", "block_table", "count")
Launch = tuple[str, Work]


@dataclass(frozen=True, slots=True)
class Heads:
    heads: int
    kv_heads: int
    head_dim: int

    @property
    def page(self) -> int:
        return 2 * self.kv_heads * PAGE * self.head_dim

    def works(self, rows: int, context: int, tree: bool, tiles: Tiles | None = None) -> list[Launch]:
        return attention_works(
            rows=rows, heads=self.heads, kv_heads=self.kv_heads, head_dim=self.head_dim, context=context, tree=tree,
            scale=self.head_dim**-0.5, q_stride=self.heads * self.head_dim, table_stride=MAX_BLOCKS, page=self.page,
            max_lanes=MAX_LANES, itemsize=2, tiles=tiles,
        )  # fmt: skip

    def chunk(self, rows: int, tiles: Tiles | None = None) -> list[Launch]:
        work = attention_chunk_work(
            rows=rows, heads=self.heads, kv_heads=self.kv_heads, head_dim=self.head_dim, scale=self.head_dim**-0.5,
            q_stride=self.heads * self.head_dim, table_stride=MAX_BLOCKS, page=self.page, itemsize=2, tiles=tiles,
        )  # fmt: skip
        return [("attention_chunk", work)]


@cache
def compiled(name: str, work: Work) -> Any:
    """Triton's compiled kernel, bf16 in and out, with programmatic dependence; `work` of any grid."""
    kernel = KERNELS[name]
    names, pointers = kernel.function.arg_names, [param.name for param in kernel.signature]
    types = {p: "*fp32" if p in FP32 else "*i32" if p in INT32 else "*bf16" for p in pointers}
    source = (GluonASTSource if kernel.function.is_gluon() else ASTSource)(
        kernel.function,
        {n: types.get(n, "constexpr") for n in names},
        {**dict(work.constants), "PDL": True},
        {(names.index(p),): [["tt.divisibility", 16]] for p in pointers},
    )
    options = {"num_warps": work.num_warps, "num_stages": work.num_stages, "enable_fp_fusion": False}
    return triton.compile(source, target=GPUTarget("cuda", 90, 32), options={**options, "launch_pdl": True})


def gridless(launch: Launch) -> Launch:
    return launch[0], replace(launch[1], grid=(1, 1, 1))


def compile_to_cache(launch: Launch) -> str:
    """Fills Triton's cache on disk; what went wrong, or nothing."""
    try:
        compiled(*launch)
    except Exception as error:
        return f"{launch}: {str(error).strip()[-200:]}"
    return ""


def random_tree(rows: int, seed: int) -> list[list[int]]:
    """The path to each node of a tree in depth-first order, node 0 the root."""
    dice, paths = random.Random(seed), [[0]]
    while len(paths) < rows:
        above = paths[-1] if dice.random() < 0.6 else paths[-1][: dice.randint(1, len(paths[-1]))]
        paths.append([*above, len(paths)])
    return paths


def ints(values: Sequence[int]) -> Tensor:
    return torch.tensor(list(values), dtype=torch.int32, device="cuda")


class Rows:
    """Rows of a pass: lane, prefix, position and path (slots from the prefix on) of each."""

    def __init__(self, heads: Heads, rows: Sequence[tuple[int, int, int, Sequence[int]]], seed: int = 0) -> None:
        generator = torch.Generator("cuda").manual_seed(seed)
        shape = (len(rows), heads.heads, heads.head_dim)
        self.q = torch.randn(shape, generator=generator, device="cuda").bfloat16()
        self.lane, self.prefix, self.position = (ints([row[i] for row in rows]) for i in range(3))
        self.ancestor = torch.zeros(len(rows), ANCESTORS, dtype=torch.int32, device="cuda")
        for i, row in enumerate(rows):
            self.ancestor[i, : len(row[3])] = ints(row[3])

    @classmethod
    def chain(cls, heads: Heads, context: int, rows: int, lane: int = 0) -> Rows:
        return cls(heads, [(lane, context, context + i, ()) for i in range(rows)])

    @classmethod
    def tree(cls, heads: Heads, context: int, paths: Sequence[Sequence[int]]) -> Rows:
        slots = [[context + node for node in path] for path in paths]
        return cls(heads, [(0, context, context + len(path) - 1, path) for path in slots])

    def row(self, i: int, lane: int | None = None) -> Rows:
        one = object.__new__(Rows)
        for name in ("q", "lane", "prefix", "position", "ancestor"):
            setattr(one, name, getattr(self, name)[i : i + 1].clone())
        if lane is not None:
            one.lane.fill_(lane)
        return one


class Cache:
    """One layer's random pages, and tables that deal them to lanes: [tables, MAX_LANES, MAX_BLOCKS]."""

    def __init__(self, heads: Heads, context: int, tables: int = 1) -> None:
        self.heads, self.blocks = heads, -(-context // PAGE)
        self.partial: dict[tuple[int, ...], tuple[Tensor, ...]] = {}
        num_pages = self.blocks * tables + 4
        self.pages = torch.randn(num_pages, 2, heads.kv_heads, PAGE, heads.head_dim, device="cuda").bfloat16()
        self.spare = list(range(num_pages - 4, num_pages))
        order = torch.randperm(num_pages - 4, device="cuda").int().view(tables, self.blocks)
        self.tables = torch.zeros(tables, MAX_LANES, MAX_BLOCKS, dtype=torch.int32, device="cuda")
        for lane in range(MAX_LANES):  # the same pages in another order
            self.tables[:, lane, : self.blocks] = order.roll(lane, 1)

    def play(self, launches: Sequence[Launch], rows: Rows, y: Tensor, table: int = 0) -> Callable[[], None]:
        """A call that launches them over `rows`; y [rows, heads, D] bf16."""
        sizes = dict(launches[0][1].constants)
        shape = (int(sizes.get("ROWS", 0)), self.heads.heads, int(sizes.get("NUM_GROUPS", 0)))
        if shape not in self.partial:
            self.partial[shape] = tuple(
                torch.full((*shape, *more), torch.nan, device="cuda") for more in ((), (), (self.heads.head_dim,))
            )
        plane = self.pages.view(-1)
        given = {
            "q": rows.q, "k_cache": plane, "v_cache": plane[self.heads.page // 2 :], "position": rows.position,
            "lane": rows.lane, "prefix": rows.prefix, "ancestor": rows.ancestor, "block_table": self.tables[table],
            "count": ints([len(rows.q)]), "y": y, **dict(zip(FP32, self.partial[shape], strict=True)),
        }  # fmt: skip
        calls = []
        for name, work in launches:
            kernel, full = compiled(*gridless((name, work))), {**given, **dict(work.constants), "PDL": True}
            arguments = [full[argument] for argument in KERNELS[name].function.arg_names]
            calls.append((kernel[work.grid], arguments))

        def call() -> None:
            for launch, arguments in calls:
                launch(*arguments)

        return call

    def result(self, launches: Sequence[Launch], rows: Rows) -> Tensor:
        y = torch.full_like(rows.q, torch.nan)
        self.play(launches, rows, y)()
        return y

    def straighten(self, context: int, path: Sequence[int], lane: int) -> None:
        """Makes `lane` lane 0's text with the rows of `path` in the slots behind the context."""
        first = context // PAGE
        table = self.tables[0]
        table[lane] = table[0]
        for i, page in enumerate(self.spare[: (context + len(path) - 1) // PAGE - first + 1]):
            self.pages[page] = self.pages[int(table[0, first + i])]
            table[lane, first + i] = page
        for i, node in enumerate(path):
            source, target = context + node, context + i
            source_page, target_page = int(table[0, source // PAGE]), int(table[lane, target // PAGE])
            self.pages[target_page, :, :, target % PAGE] = self.pages[source_page, :, :, source % PAGE]

    def exact(self, rows: Rows, i: int) -> Tensor:
        """Row i of a straight pass in float64, [heads, D]."""
        length, heads = int(rows.position[i]) + 1, self.heads
        pages = self.pages[self.tables[0, int(rows.lane[i]), : -(-length // PAGE)].long()].double()
        k, v = (pages[:, part].transpose(0, 1).flatten(1, 2)[:, :length] for part in range(2))  # [G, T, D]
        q = rows.q[i].double().view(heads.kv_heads, -1, heads.head_dim)
        weights = (q @ k.transpose(1, 2) * heads.head_dim**-0.5).softmax(-1)
        return (weights @ v).flatten(0, 1)
