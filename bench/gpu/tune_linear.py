"""Finds fast tiles of the Triton linears on a GPU, and holds all that it tries to the same bits.

    python3 -m bench.gpu.tune_linear [--shapes qkv,o] [--rows 1,32,2048] [--top 2]

Weights stand in rotation and outgrow the second-level cache; launches follow each other with programmatic dependence,
as in a program. The peer is cuBLAS (torch.mm, bf16 out, without the activation). Knows no model.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ProcessPoolExecutor
from itertools import cycle
from multiprocessing import get_context
from statistics import median
from typing import Any

import torch
from triton.runtime.errors import OutOfResources

from bench.gpu.linear_candidates import SHAPES, Tiles, Variant, candidates, compile_to_cache, matrix_of
from bench.gpu.linear_candidates import prefetch_candidates as prefetches
from tandem.kernels.cuda.linear_tiles import MAX_FEW_ROWS, FewTiles, Matrix, chunk_tiles, few_tiles

READ_RATE = 4.2e12
"""Bytes a second that a plain read of an H200's memory was measured to reach."""
POOL = 248320 * 5120
ROTATION = 256 << 20
GRAPH = 2 << 30
"""Bytes of weights that a graph reads, in 3 to 128 launches."""
REPLAYS = 7
PROCESSES = 14
BUCKETS = (1, 2, 4, 8, 16, 24, 32, 64, 128, 256, 512, 1024, 2048)
Call = Callable[[], object]
Found = dict[int, dict[Tiles, float]]
"""Per row count, microseconds of tiles."""


class Bench:
    """One matrix on the device: inputs, rotating weights, and the y that everything must equal bit by bit."""

    def __init__(self, matrix: Matrix, pool: torch.Tensor) -> None:
        self.matrix = matrix
        self.width = matrix.n * (1 + matrix.gated)
        self.nbytes = self.width * matrix.k * matrix.itemsize
        size = self.width * matrix.k
        copies = min(-(-ROTATION // self.nbytes), pool.numel() // size)
        self.weights = [pool[i * size : (i + 1) * size].view(self.width, matrix.k) for i in range(copies)]
        rows = 64 if matrix.n > 40000 else BUCKETS[-1]  # a head never sees a whole chunk
        self.buckets = [bucket for bucket in BUCKETS if bucket <= rows]
        self.x = torch.randn(rows, matrix.k, device="cuda").to(pool.dtype)
        self.y = torch.empty(rows, matrix.n, device="cuda")
        self.parts = torch.empty(MAX_FEW_ROWS, matrix.parts, matrix.n, device="cuda")  # y of few rows
        self.loaded: dict[Variant, Any] = {}
        self.wrong: list[str] = []
        self.play(chunk_tiles(matrix, rows), rows)()
        self.reference = self.y.clone()

    def errors(self) -> str:
        """How far the reference is from float64, and torch's fp32 product from its own."""
        rows, columns = 64, min(self.matrix.n, 8192)
        parts = [w[:columns].double() for w in self.weights[0].split(self.matrix.n)]
        exact = [self.x[:rows].double() @ part.T for part in parts]
        wanted = torch.nn.functional.silu(exact[0]) * exact[1] if self.matrix.gated else exact[0]
        eager = self.x[:rows].float() @ parts[0].float().T
        ours = (self.reference[:rows, :columns] - wanted).norm() / wanted.norm()
        return f"error {ours:.1e}, torch fp32 {(eager - exact[0]).norm() / exact[0].norm():.1e}"

    def play(self, tiles: Tiles, rows: int, count: int | None = None) -> Call:
        """A call that launches the product with the next weight, the first one first; `count` of the rows are real."""
        variant = Variant(self.matrix, tiles)
        if variant not in self.loaded:
            self.loaded[variant] = variant.compile()
        kernel, work = self.loaded[variant], variant.work(rows)
        filled = torch.tensor([rows if count is None else count], dtype=torch.int32, device="cuda")
        constants = {**dict(work.constants), "PDL": True}
        rest = [constants[name] for name in kernel.src.fn.arg_names[5:]]
        launch, weights = kernel[work.grid], cycle(self.weights)
        y = self.parts if isinstance(tiles, FewTiles) else self.y
        return lambda: launch(self.x, next(weights), None, filled, y, *rest)

    def peer(self, rows: int) -> Call:
        """The same of cuBLAS."""
        y = torch.empty(rows, self.width, dtype=self.x.dtype, device="cuda")
        weights = cycle(self.weights)
        return lambda: torch.mm(self.x[:rows], next(weights).T, out=y)

    def check(self, tiles: Tiles, rows: int, count: int) -> None:
        """Rows below `count` must have the reference's bits, and the others stay as they were."""
        few = isinstance(tiles, FewTiles)
        (self.parts if few else self.y)[:rows].fill_(torch.nan)
        self.play(tiles, rows, count)()
        y, *others = self.parts[:rows].unbind(1) if few else [self.y[:rows]]
        for other in others:
            y = y + other
        if not torch.equal(y[:count], self.reference[:count]) or not y[count:].isnan().all():
            self.wrong.append(f"{tiles}, {count} of {rows} rows")

    def us(self, call: Call) -> float:
        """Microseconds of a call: the median of some replays of a graph of many."""
        launches = min(max(GRAPH // self.nbytes, len(self.weights), 3), 128)
        call()
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            for _ in range(launches):
                call()
        graph.replay()
        taken = []
        for _ in range(REPLAYS):
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            start.record()
            graph.replay()
            end.record()
            end.synchronize()
            taken.append(1e3 * start.elapsed_time(end) / launches)
        return median(taken)

    def times(self, tiles: Iterable[Tiles], rows: int) -> dict[Tiles, float]:
        """Microseconds of each that fits the device, after its bits were compared."""
        found = {}
        for one in tiles:
            try:
                self.check(one, rows, rows)
                found[one] = self.us(self.play(one, rows))
            except OutOfResources as error:
                print(f"    {shown(one)}: {error}")
        return found

    def check_buckets(self) -> None:
        """Every bucket with the tiles that are shipped: full, one row short, one row alone."""
        for bucket in self.buckets:
            for count in {bucket, max(1, bucket - 1), 1}:
                self.check(shipped(self.matrix, bucket), bucket, count)

    def speed(self, rows: int, us: float) -> str:
        if rows <= MAX_FEW_ROWS:
            return f"{self.nbytes / us / READ_RATE * 1e8:5.1f} %"
        return f"{2e-6 * rows * self.width * self.matrix.k / us:4.0f} TF"


def shipped(matrix: Matrix, rows: int) -> Tiles:
    return few_tiles(matrix, rows) if rows <= MAX_FEW_ROWS else chunk_tiles(matrix, rows)


def shown(tiles: Tiles) -> str:
    head = f"{tiles.bm}x{tiles.bn}x{tiles.bk} w{tiles.num_warps} s{tiles.num_stages}"
    if isinstance(tiles, FewTiles):
        return f"{head} {'left' if tiles.weight_left else 'right'} p{tiles.prefetch}"
    return f"{head} g{tiles.group}"


def compile_all(executor: ProcessPoolExecutor, wanted: Iterable[Variant]) -> None:
    """Compiles side by side; says what no compiler takes."""
    start, variants = time.monotonic(), list(dict.fromkeys(wanted))
    failures = [line for line in executor.map(compile_to_cache, variants, chunksize=4) if line]
    print(f"{len(variants)} variants compiled in {time.monotonic() - start:.0f} s", *failures, sep="\n    ", flush=True)


def report(shape: str, bench: Bench, found: Found, top: int) -> None:
    """The fastest tiles per row count, beside cuBLAS and what is shipped today."""
    print(f"{shape} {SHAPES.get(shape, '')}: {bench.errors()}")
    for rows, times in found.items():
        peer, now = bench.us(bench.peer(rows)), bench.us(bench.play(shipped(bench.matrix, rows), rows))
        for tiles, us in sorted(times.items(), key=lambda item: item[1])[:top]:
            line = f"{us:8.2f} us {bench.speed(rows, us)}  cuBLAS {peer:8.2f}  shipped {now:8.2f}"
            print(f"  {rows:5} {shown(tiles):30} {line}", flush=True)


def tune(pool: torch.Tensor, executor: ProcessPoolExecutor, shapes: list[str], rows: list[int], top: int) -> bool:
    """Tiles first, then for the best of them how much to ask for ahead. Whether all bits were equal."""
    benches = {shape: Bench(matrix_of(shape), pool) for shape in shapes}
    found: dict[str, Found] = {shape: {} for shape in shapes}
    tried = {(s, r): candidates(b.matrix, r) for s, b in benches.items() for r in rows if r <= b.buckets[-1]}
    compile_all(executor, (Variant(benches[s].matrix, tiles) for (s, _), more in tried.items() for tiles in more))
    for (shape, count), tiles in tried.items():
        found[shape][count] = benches[shape].times(tiles, count)
    for (shape, count), _ in tried.items():
        best = sorted(found[shape][count], key=found[shape][count].__getitem__)[:2]
        tried[shape, count] = [more for tiles in best for more in prefetches(tiles) if more != tiles]
    compile_all(executor, (Variant(benches[s].matrix, tiles) for (s, _), more in tried.items() for tiles in more))
    for (shape, count), tiles in tried.items():
        found[shape][count] |= benches[shape].times(tiles, count)
    for shape, bench in benches.items():
        bench.check_buckets()
        report(shape, bench, found[shape], top)
        if bench.wrong:
            print(f"  OTHER BITS in {len(bench.wrong)}:", *bench.wrong[:8], sep="\n    ")
    return not any(bench.wrong for bench in benches.values())


def check_fp32(shapes: Iterable[str]) -> bool:
    """The profile fp32 at the small shapes: buckets alone, untimed."""
    torch.backends.cuda.matmul.allow_tf32 = False
    pool = torch.empty(SHAPES["s.head"][0] * SHAPES["s.head"][1], device="cuda").normal_(0, 0.02)
    right = True
    for shape in shapes:
        bench = Bench(matrix_of(shape, itemsize=4), pool)
        bench.check_buckets()
        print(f"{shape} fp32: {bench.errors()}", *bench.wrong[:4], sep="\n    ")
        right &= not bench.wrong
    return right


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shapes", default=",".join(SHAPES))
    parser.add_argument("--rows", default="1,8,16,32,2048", help="row buckets to find tiles for")
    parser.add_argument("--top", type=int, default=2, help="tiles to print per row bucket")
    args = parser.parse_args()
    start, shapes = time.monotonic(), args.shapes.split(",")
    torch.manual_seed(0)
    pool = torch.empty(POOL, dtype=torch.bfloat16, device="cuda").normal_(0, 0.02)
    with ProcessPoolExecutor(PROCESSES, get_context("spawn")) as executor:
        right = tune(pool, executor, shapes, [int(rows) for rows in args.rows.split(",")], args.top)
    right &= check_fp32(shape for shape in shapes if shape in ("s.qkv", "s.gate_up", "s.down"))
    print(f"{'all bits equal' if right else 'BITS DIFFER'}, {time.monotonic() - start:.0f} s")
    sys.exit(not right)


if __name__ == "__main__":
    main()
