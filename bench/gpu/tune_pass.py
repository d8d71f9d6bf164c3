"""Finds tiles of the linears that make a whole pass fast: what is fastest alone need not be among its neighbours.

    python3 -m bench.gpu.tune_pass --shape smollm2 --rows 1 [--layers 8] [--kind extend] [--at 900]

One linear after the other takes each candidate in the whole pass of one row bucket, and keeps the fastest. Bits are
`tune_linear`'s business.
"""

from __future__ import annotations

import argparse
from contextlib import ExitStack

import numpy as np

from bench.gpu.pass_candidates import (
    Attention,
    Chosen,
    Key,
    Option,
    fold_options,
    neighbours,
    options,
    split_options,
    told,
)
from bench.gpu.pass_rig import Rig
from bench.gpu.shapes import SHAPES
from tandem.driver import Driver
from tandem.kernels.cuda import linear_tiles
from tandem.keys import Kind


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", choices=list(SHAPES), default="smollm2")
    parser.add_argument("--layers", type=int)
    parser.add_argument("--vocab", type=int, help="another vocabulary: the head is none of the layers' business")
    parser.add_argument("--kind", type=Kind, default=Kind.EXTEND)
    parser.add_argument("--rows", type=int, default=1)
    parser.add_argument("--at", type=int, default=900)
    parser.add_argument("--context", type=int, default=8192)
    parser.add_argument("--limit", type=int, default=60, help="candidates of a linear")
    parser.add_argument("--width", type=int, help="only linears of this width")
    parser.add_argument("--near", action="store_true", help="only how much is asked for ahead, and early starts")
    parser.add_argument("--attention", action="store_true", help="tiles of attention first")
    parser.add_argument("--once", action="store_true", help="the pass as it is, no search")
    parser.add_argument("--own-carveout", action="store_true", help="each kernel asks for shared memory by itself")
    args = parser.parse_args()
    if args.own_carveout:
        Driver.prefer_shared = lambda *_: None  # type: ignore[method-assign]
    with ExitStack() as stack:
        rig = Rig(stack, args)
        late = rig.us({}, early=False)
        now = rig.us({})
        print(f"{args.kind} of {args.rows} at {args.at}: {now:.1f} us, with full edges {late:.1f} us", flush=True)
        if args.attention:
            search_attention(rig, args.rows, args.kind is Kind.VERIFY_TREE)
        if args.once:
            print(*rig.parts_of({}), sep="\n  ")
        else:
            search(rig, args)


def search_attention(rig: Rig, rows: int, tree: bool) -> None:
    """Tiles of the split first, then how its groups are folded."""
    rig.attention = fastest(rig, split_options(rows))
    rig.attention = fastest(rig, fold_options(rig.attention, rig.head_dim, tree))


def fastest(rig: Rig, several: list[Attention]) -> Attention:
    rig.compile_for([{}], several)
    found = []
    for option in several:
        rig.attention = option
        found.append((rig.us({}), option))
    found.sort(key=lambda pair: pair[0])
    for us, option in found[:6]:
        print(f"  attention: {us:8.1f} us with {option}", flush=True)
    return found[0][1]


def search(rig: Rig, args: argparse.Namespace) -> None:
    """Tiles of one matrix after the other, then how much each asks for ahead, twice, since they share L2 and places."""
    random = np.random.default_rng(0)
    tried: dict[Key, list[Option]] = {}
    for matrix in rig.matrices():
        if args.width not in (None, matrix.n):
            continue
        usual = (linear_tiles.few_tiles(matrix, args.rows), matrix.parts)
        every = neighbours(usual) if args.near else options(matrix, args.rows)
        picked = random.permutation(len(every))[: args.limit]
        tried[matrix.n, matrix.k, matrix.gated] = [every[i] for i in picked]
    rig.compile_for([{key: option} for key, several in tried.items() for option in several])
    chosen: Chosen = {}
    for key, several in tried.items():
        improve(rig, chosen, key, several, shown_at_most=8)
    for _ in range(2):
        near = {key: neighbours(option) for key, option in chosen.items()}
        rig.compile_for([{key: option} for key, several in near.items() for option in several])
        for key in tried:
            if key in chosen:
                improve(rig, chosen, key, neighbours(chosen[key]), shown_at_most=3)
    print(f"best {rig.us(chosen):.1f} us:", *(f"{key}: {told(o)}" for key, o in chosen.items()), sep="\n  ", flush=True)
    print(*rig.parts_of(chosen), sep="\n  ", flush=True)


def improve(rig: Rig, chosen: Chosen, key: Key, several: list[Option], shown_at_most: int) -> None:
    """Puts the fastest of `several` into `chosen` if it makes the pass faster."""
    before = rig.us(chosen)
    found = sorted(((rig.us(chosen | {key: option}), option) for option in several), key=lambda pair: pair[0])
    for us, option in found[:shown_at_most]:
        print(f"  {key}: {us:8.1f} us with {told(option)}", flush=True)
    if found and found[0][0] < before:
        chosen[key] = found[0][1]


if __name__ == "__main__":
    main()
