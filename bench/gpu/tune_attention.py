"""Holds the Triton attention to the bits of one-row steps on a GPU, then times candidate tiles beside torch's SDPA.

    python3 -m bench.gpu.tune_attention [--bits-only | --times-only]

Launches stand in CUDA graphs of many, with programmatic dependence, over caches that outgrow the second-level one.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from itertools import product
from multiprocessing import get_context
from pathlib import Path
from statistics import median

import torch
from torch.nn.attention.bias import causal_lower_right
from torch.nn.functional import scaled_dot_product_attention
from triton.runtime.errors import OutOfResources

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from bench.gpu.attention_case import Cache, Heads, Launch, Rows, compile_to_cache, gridless, random_tree
from tandem.kernels.cuda.attention import Tiles

DENSE, SMOL = Heads(24, 4, 256), Heads(9, 3, 64)
CONTEXTS = (5, 63, 64, 1000, 2047, 4133, 32828)
CLASS = 34816
"""A context class that holds all of CONTEXTS and a chunk behind."""
CHUNK_ROWS, CHUNK_BUCKET = (0, 1, 63, 64, 150, 299), 512
PROCESSES = 14
REPLAYS = 5
TIMES = [
    *((DENSE, context, rows) for context, rows in product((1024, 32768), (1, 8, 16, 32))),
    *((DENSE, 8192, rows) for rows in (1, 32)),
    *((SMOL, 1024, rows) for rows in (1, 8, 32)),
]
CHUNKS = [(DENSE, 0), (DENSE, 2048), (SMOL, 0)]
FOLDS = {"attention_merge": ((2, 8), (2, 16), (4, 32), (8, 32)), "attention_tail": ((4, 8), (8, 4), (8, 8), (8, 12))}
"""Warps, and groups loaded at once."""


def split_candidates(heads: Heads, rows: int) -> list[Tiles]:
    pairs = rows * heads.heads // heads.kv_heads
    if pairs <= 16:
        return [Tiles(16, 4, 3), Tiles(16, 8, 3), Tiles(16, 4, 2), Tiles(16, 2, 3)]
    if pairs <= 64:
        return [Tiles(64, 4, 3), Tiles(64, 8, 3), Tiles(64, 4, 2), Tiles(32, 4, 3)]
    return [Tiles(64, 4, 3), Tiles(64, 8, 3), Tiles(64, 4, 2), Tiles(64, 8, 2), Tiles(128, 8, 2)]


CHUNK_TILES = (Tiles(64, 4, 2), Tiles(128, 8, 2), Tiles(64, 4, 3), Tiles(64, 8, 2), Tiles(64, 8, 3))


BIT_TILES = (Tiles(16, 4, 3), Tiles(16, 8, 3), Tiles(32, 4, 3), Tiles(64, 4, 3), Tiles(64, 8, 2), Tiles(128, 8, 2))
BIT_CHUNKS = (None, Tiles(64, 4, 2), Tiles(128, 8, 2), Tiles(64, 8, 2))


def bit_launches(heads: Heads) -> list[Launch]:
    passes = [heads.works(rows, CLASS, tree, tiles) for rows, tree, tiles in product((1, 32), (False, True), BIT_TILES)]
    passes += [heads.works(1, CLASS, False), heads.works(1, CLASS, True)]
    passes += [heads.works(32, CLASS, tree) for tree in (False, True)]
    passes += [heads.chunk(CHUNK_BUCKET, tiles) for tiles in BIT_CHUNKS]
    return [launch for launches in passes for launch in launches]


def with_fold(launches: list[Launch], warps: int, depth: int) -> list[Launch]:
    """The pass with another way to fold its groups."""
    split, (name, work) = launches
    constants = tuple((key, depth if key == "DEPTH" else value) for key, value in work.constants)
    return [split, (name, replace(work, num_warps=warps, constants=constants))]


def time_launches() -> list[Launch]:
    found = []
    for heads, context, rows in TIMES:
        for tree in (False, True):
            for tiles in (None, *split_candidates(heads, rows)):
                found += heads.works(rows, context, tree, tiles)
            base = heads.works(rows, context, tree)
            for fold in FOLDS[base[1][0]]:
                found += with_fold(base, *fold)
    return found + [launch for heads, _ in CHUNKS for tiles in CHUNK_TILES for launch in heads.chunk(2048, tiles)]


def compile_all(launches: Iterable[Launch]) -> None:
    wanted = list(dict.fromkeys(map(gridless, launches)))
    start = time.monotonic()
    with ProcessPoolExecutor(PROCESSES, get_context("spawn")) as pool:
        wrong = [words for words in pool.map(compile_to_cache, wanted) if words]
    print(f"{len(wanted)} variants compiled in {time.monotonic() - start:.0f} s", *wrong, sep="\n  ", flush=True)


def attempt(make: Callable[[], torch.Tensor | float]) -> torch.Tensor | float | None:
    """The result, or None where the tiles do not fit the device."""
    try:
        return make()
    except OutOfResources:
        return None


def check_trees(cache: Cache, context: int) -> list[str]:
    heads, paths = cache.heads, random_tree(32, context)
    rows = Rows.tree(heads, context, paths)
    found, wrong = cache.result(heads.works(32, CLASS, True), rows), []
    for tiles in BIT_TILES:
        other = attempt(lambda tiles=tiles: cache.result(heads.works(32, CLASS, True, tiles), rows))
        if other is not None and not torch.equal(other, found):
            wrong.append(f"tree {tiles}")
    differing = 0
    for i, path in enumerate(paths):
        cache.straighten(context, path, lane=7)
        one = cache.result(heads.works(1, CLASS, False), rows.row(i, lane=7))
        differing += not torch.equal(one[0], found[i])
    return [*wrong, *([f"{differing} tree rows"] if differing else [])]


def check_straight(cache: Cache, context: int) -> tuple[list[str], float]:
    """Chains, passes of several lanes and chunks; also the relative error of a row against float64."""
    heads, wrong = cache.heads, []
    chain = Rows.chain(heads, context, 32)
    lanes = [
        (lane, 0, context + 3 * i - lane, ()) for lane, count in ((0, 9), (2, 1), (3, 17), (5, 5)) for i in range(count)
    ]
    mixed = Rows(heads, [(lane, 0, max(0, position), ()) for lane, _, position, _ in lanes], seed=1)
    for name, rows in (("chain", chain), ("lanes", mixed)):
        found = cache.result(heads.works(32, CLASS, False), rows)
        for tiles in BIT_TILES:
            other = attempt(lambda tiles=tiles, rows=rows: cache.result(heads.works(32, CLASS, False, tiles), rows))
            if other is not None and not torch.equal(other, found):
                wrong.append(f"{name} {tiles}")
        steps = torch.cat([cache.result(heads.works(1, CLASS, False), rows.row(i)) for i in range(32)])
        differing = sum(not torch.equal(steps[i], found[i]) for i in range(32))
        wrong += [f"{differing} rows of {name}"] if differing else []
    error = max(
        float((found[i].double() - cache.exact(mixed, i)).norm() / cache.exact(mixed, i).norm()) for i in (0, 9, 31)
    )
    rows = Rows.chain(heads, context, 300)
    for tiles in BIT_CHUNKS:
        y = attempt(lambda tiles=tiles, rows=rows: cache.result(heads.chunk(CHUNK_BUCKET, tiles), rows))
        if y is None:
            continue
        steps = torch.cat([cache.result(heads.works(1, CLASS, False), rows.row(i)) for i in CHUNK_ROWS])
        if not torch.equal(steps, y[list(CHUNK_ROWS)]):
            wrong.append(f"chunk {tiles}")
    return wrong, error


def check_bits() -> bool:
    right = True
    for heads in (DENSE, SMOL):
        for context in CONTEXTS:
            cache = Cache(heads, context + 320)
            straight, error = check_straight(cache, context)
            wrong = [*check_trees(cache, context), *straight]
            print(f"bits {heads} context {context}: {'; '.join(wrong) or 'all equal'}, error {error:.1e}", flush=True)
            right &= not wrong and error < 5e-3
    return right


def graph_us(calls: Sequence[Callable[[], object]]) -> float:
    """Microseconds of one of the calls, the median over replays of a graph of all of them."""
    calls[0]()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for call in calls:
            call()
    graph.replay()
    taken = []
    for _ in range(REPLAYS):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        graph.replay()
        end.record()
        end.synchronize()
        taken.append(1e3 * start.elapsed_time(end) / len(calls))
    return median(taken)


def best(found: dict[object, float]) -> tuple[object, float]:
    return min(found.items(), key=lambda item: item[1])


def short(tiles: object) -> str:
    return "/".join(map(str, (tiles.bm, tiles.num_warps, tiles.num_stages))) if isinstance(tiles, Tiles) else str(tiles)


def tune_few(heads: Heads, context: int, rows: int) -> list[str]:
    """Lines of the table: straight and tree, the tiles shipped, the best tried, SDPA."""
    tables = max(2, (256 << 20) // (2 * heads.page * (context // 64)))
    cache, lines = Cache(heads, context + 64, tables), []
    repeats = range(max(1, 64 // tables)) if context == 1024 else range(1)
    k, v = (torch.randn(tables, 1, heads.kv_heads, context, heads.head_dim, device="cuda").bfloat16() for _ in "kv")
    q = torch.randn(1, heads.heads, rows, heads.head_dim, device="cuda").bfloat16()
    peer = graph_us(
        [
            lambda t=t: scaled_dot_product_attention(q, k[t], v[t], enable_gqa=True)
            for _ in repeats
            for t in range(tables)
        ]
    )
    for tree in (False, True):
        paths = random_tree(rows, 1)
        pass_rows = Rows.tree(heads, context - 40, paths) if tree else Rows.chain(heads, context - rows, rows)
        y = torch.empty_like(pass_rows.q)

        def us(launches: list[Launch], pass_rows: Rows = pass_rows, y: torch.Tensor = y) -> float:
            return graph_us([cache.play(launches, pass_rows, y, t) for _ in repeats for t in range(tables)])

        shipped = us(heads.works(rows, context, tree))
        passes = {t: heads.works(rows, context, tree, t) for t in split_candidates(heads, rows)}
        tried = {t: attempt(lambda us=us, launches=launches: us(launches)) for t, launches in passes.items()}
        tiles, split_us = best({t: found for t, found in tried.items() if found is not None})
        base = heads.works(rows, context, tree, tiles)
        fold, fold_us = best({f: us(with_fold(base, *f)) for f in FOLDS[base[1][0]]})
        kind = "tree" if tree else "step" if rows == 1 else "chain"
        every = " ".join(f"{short(t)}={found:.1f}" for t, found in tried.items() if found is not None)
        lines.append(
            f"{heads.head_dim:4} {context:6} {kind:5} {rows:3} {shipped:7.1f} {split_us:7.1f} {short(tiles):8} "
            f"{fold_us:7.1f} {fold!s:8} {peer:7.1f}   {every}"
        )
    return lines


def tune_chunk(heads: Heads, behind: int, rows: int = 2048) -> str:
    cache, chunk = Cache(heads, behind + rows), Rows.chain(heads, behind, rows)
    y, work = torch.empty_like(chunk.q), 4 * heads.heads * heads.head_dim * sum(behind + i + 1 for i in range(rows))
    tried = {t: attempt(lambda t=t: graph_us([cache.play(heads.chunk(rows, t), chunk, y)] * 4)) for t in CHUNK_TILES}
    group = heads.heads // heads.kv_heads
    k, v = (torch.randn(1, heads.heads // group, behind + rows, heads.head_dim, device="cuda").bfloat16() for _ in "kv")
    k, v, q = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1), chunk.q.transpose(0, 1)[None]
    mask = causal_lower_right(rows, behind + rows) if behind else None
    peer = graph_us([lambda: scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=not behind)] * 4)
    every = " ".join(f"{short(t)}={work / us / 1e6:.0f}" for t, us in tried.items() if us is not None)
    return f"{heads.head_dim:4} chunk {rows} behind {behind}, TFLOP/s: {every}   SDPA={work / peer / 1e6:.0f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    only = parser.add_mutually_exclusive_group()
    only.add_argument("--bits-only", action="store_true")
    only.add_argument("--times-only", action="store_true")
    asked = parser.parse_args()
    torch.manual_seed(0)
    right = True
    if not asked.times_only:
        compile_all(launch for heads in (DENSE, SMOL) for launch in bit_launches(heads))
        right = check_bits()
    if not asked.bits_only:
        compile_all(time_launches())
        print("dim context kind rows shipped us, best split, best fold (warps, depth), SDPA; all splits")
        for case in TIMES:
            print(*tune_few(*case), sep="\n", flush=True)
        for chunk in CHUNKS:
            print(tune_chunk(*chunk), flush=True)
    print("every bit equal" if right else "BITS DIFFER")
    sys.exit(not right)


if __name__ == "__main__":
    main()
