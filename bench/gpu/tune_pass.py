"""Finds tiles of the linears that make a whole pass fast: what is fastest alone need not be among its neighbours.

    python3 -m bench.gpu.tune_pass --shape smollm2 --rows 1 [--layers 8] [--kind extend] [--at 900]

One linear after the other takes each candidate in the whole pass of one row bucket, and keeps the fastest. Bits are
`tune_linear`'s business. Knows nothing of bundles: programs are lowered, compiled and built as graphs right here.
"""

from __future__ import annotations

import argparse
import hashlib
import math
import os
import tempfile
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack
from dataclasses import replace
from multiprocessing import get_context
from pathlib import Path

import numpy as np

from bench.gpu.device import Device
from bench.gpu.passes import Passes
from bench.gpu.random_checkpoint import RandomCheckpoint
from bench.gpu.shapes import SHAPES
from tandem.artifacts.program import FULL, Program
from tandem.artifacts.weights import MappedWeights
from tandem.compile.compose import Composer
from tandem.compile.cuda import rows as layout
from tandem.compile.cuda.entries import Shape
from tandem.compile.cuda.programs import encode_program, lower
from tandem.compile.cuda.target import CudaTarget
from tandem.compile.models.families import resolve
from tandem.compile.profile import find_profile
from tandem.compile.store import write_weights
from tandem.driver import Driver
from tandem.errors import CompileError, DeviceError
from tandem.kernels.cuda import linear, linear_rotary, linear_tiles
from tandem.kernels.cuda.build import Cubin, Variant, compile_variant
from tandem.kernels.cuda.linear_tiles import FewTiles, Matrix
from tandem.keys import Kind
from tandem.runtime.executor.cuda.executor import CudaExecutor, Image
from tandem.runtime.executor.cuda.graphs import build
from tandem.runtime.executor.cuda.modules import Modules

FILL = 64
"""Rows of a pass that fills the cache."""
SMALL = (
    *((8, bk, warps, 9, False) for bk in (128, 256) for warps in (2, 4)),
    *((16, bk, warps, 9, left) for bk in (64, 128, 256) for warps in (2, 4) for left in (False, True)),
    *((32, bk, 4, 9, left) for bk in (64, 128, 256) for left in (False, True)),
    *((64, bk, 4, 9, True) for bk in (64, 128)),
)
LARGE = (
    *((64, 128, 4, stages, True) for stages in (6, 8)),
    (32, 256, 4, 6, False),
    (64, 64, 4, 8, True),
    (128, 128, 8, 6, True),
)
"""Columns, inputs, warps, most stages, and whether weights stand left."""
Chosen = dict[tuple[int, int, bool], FewTiles]
"""Tiles by width, inputs and whether gated."""


class Rig:
    """A model of `shape` on the device, whose pass may be lowered anew with other tiles."""

    def __init__(self, stack: ExitStack, args: argparse.Namespace) -> None:
        self._pool = stack.enter_context(ProcessPoolExecutor(os.cpu_count(), get_context("spawn")))
        shape = SHAPES[args.shape]
        shape = replace(shape, **{"num_hidden_layers": args.layers} if args.layers else {})
        shape = replace(shape, **{"vocab_size": args.vocab} if args.vocab else {})
        checkpoint, profile = RandomCheckpoint(shape), find_profile("bf16")
        spec, folder = (
            resolve(checkpoint.config),
            Path(stack.enter_context(tempfile.TemporaryDirectory(dir="/dev/shm"))),
        )
        geometry = CudaTarget.find("cuda").geometry(spec, profile, args.context)
        geometry = replace(geometry, max_rows=FILL)  # the one prefill chunk that there is
        write_weights(spec, profile, checkpoint, folder / "w", layout=layout, context_length=args.context)
        self._composer = Composer(spec, profile, geometry, MappedWeights(folder / "w"))
        kinds = (Kind.EXTEND, Kind.VERIFY_CHAIN) if args.kind is Kind.EXTEND else (args.kind,)
        bound = next(c for c in (1024, 2048, 4096, 8192, 16384, 32768) if args.at + args.rows <= c)
        self._shape = Shape(kinds, min(bound, args.context), args.rows)
        self._cubins: dict[Variant, Cubin] = {}
        self._data: dict[str, bytes] = {}
        filling = self.program({}, Shape((Kind.EXTEND,), 0, FILL))
        first = self.program({})
        programs = [(kind, self._shape.context_class, args.rows, first) for kind in kinds]
        programs += [(Kind.EXTEND, 0, FILL, filling)]
        self.executor = CudaExecutor(Image(geometry, folder / "w", programs, self._data), num_pages=args.at // 64 + 66)
        stack.callback(self.executor.close)
        self.executor.finish()
        self._passes, self._device = Passes(self.executor), Device(self.executor)
        self._passes.fill(args.at)
        if args.kind is Kind.EXTEND:
            self._passes.extend(args.rows, args.at)
        else:
            self._passes.verify(args.kind, args.rows, args.at)

    def matrices(self) -> list[Matrix]:
        """The few-row linears of the pass, each once."""
        seen: dict[Matrix, None] = {}

        def note(matrix: Matrix, rows: int) -> FewTiles:
            seen[matrix] = None
            return usual(matrix, rows)

        usual = linear_tiles.few_tiles
        with _instead(note):
            lower(self._composer, self._shape)
        return list(seen)

    def program(self, chosen: Chosen, shape: Shape | None = None) -> Program:
        usual = linear_tiles.few_tiles
        with _instead(lambda m, rows: chosen.get((m.n, m.k, m.gated)) or usual(m, rows)):
            lowered = lower(self._composer, shape or self._shape)
        self.compile(lowered.variants())

        def add(data: bytes) -> str:
            name = hashlib.sha256(data).hexdigest()
            self._data[name] = data
            return name

        return encode_program(lowered, self._cubins, add)

    def compile(self, variants: set[Variant]) -> None:
        for variant in (
            pending := {v: self._pool.submit(compile_variant, v, 90) for v in variants - self._cubins.keys()}
        ):
            try:
                self._cubins[variant] = pending[variant].result()
            except CompileError as error:
                print(f"    {error}")

    def compile_for(self, options: list[Chosen]) -> None:
        """Every kernel that any of `options` needs, side by side."""
        usual, wanted = linear_tiles.few_tiles, set[Variant]()
        spec = replace(self._composer.spec, num_hidden_layers=2)  # the other layers have the same kernels
        for chosen in options:
            with _instead(lambda m, rows, chosen=chosen: chosen.get((m.n, m.k, m.gated)) or usual(m, rows)):
                wanted |= lower(replace(self._composer, spec=spec), self._shape).variants()
        self.compile(wanted)

    def us(self, chosen: Chosen, *, early: bool = True) -> float:
        """Microseconds of the pass with these tiles, or infinity where they do not fit.

        Without `early` each launch begins where the last one ends.
        """
        try:
            program, executor = self.program(chosen), self.executor
        except KeyError:
            return math.inf
        if not early:
            program.edges["type"], program.edges["from_port"] = FULL, 0
        with ExitStack() as stack:
            modules = Modules(executor._driver, self._data.__getitem__, [program], 90)
            stack.callback(modules.close)
            try:
                functions = modules.functions(program)
            except DeviceError:
                return math.inf
            graph = build(stack, executor._driver, program, functions, executor._bases, self._device._stream)
            found = min(self._device.ms(graph, 5).runs)
            executor._driver.synchronize(self._device._stream)
        return 1e3 * found


class _instead:
    """While it is entered, `linear_work` asks `choose` for tiles."""

    def __init__(self, choose: object) -> None:
        self._choose = choose

    def __enter__(self) -> None:
        self._usual = linear.few_tiles
        linear.few_tiles = linear_rotary.few_tiles = self._choose  # type: ignore[assignment]

    def __exit__(self, *_: object) -> None:
        linear.few_tiles = linear_rotary.few_tiles = self._usual


def candidates(matrix: Matrix, rows: int) -> Iterator[FewTiles]:
    """Tiles worth a try whose stages fit a block's shared memory."""
    bm = 32 if rows > 16 else 16
    row_bytes = matrix.k * matrix.itemsize
    small = matrix.n * matrix.k < 1 << 21
    for bn, bk, warps, most, left in SMALL if small else LARGE:
        stage = (bn * (1 + matrix.gated) + bm) * bk * matrix.itemsize
        stages = min(-(-matrix.k // bk) + 1, most, (220 << 10) // stage)
        for ahead in (min(row_bytes, 4096),) if small else (0, 1024, 2048, 4096, 8192):
            if stages > 1:
                yield from (FewTiles(bm, bn, bk, warps, stages, left, ahead, early) for early in (False, True))


def shown(tiles: FewTiles) -> str:
    left, early = "left" if tiles.weight_left else "right", " early" if tiles.early else ""
    shape = f"{tiles.bm}x{tiles.bn}x{tiles.bk} w{tiles.num_warps} s{tiles.num_stages}"
    return f"{shape} {left} p{tiles.prefetch}{early}"


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
        if not args.once:
            search(rig, args)


def search(rig: Rig, args: argparse.Namespace) -> None:
    random = np.random.default_rng(0)
    chosen: Chosen = {}
    options: dict[tuple[int, int, bool], list[FewTiles]] = {}
    for matrix in rig.matrices():
        every = list(candidates(matrix, args.rows))
        picked = random.permutation(len(every))[: args.limit]
        options[matrix.n, matrix.k, matrix.gated] = [every[i] for i in picked]
    rig.compile_for([{key: tiles} for key, several in options.items() for tiles in several])
    best = rig.us({})
    for key, several in options.items():
        found = sorted((rig.us(chosen | {key: tiles}), shown(tiles), tiles) for tiles in several)
        for us, text, _ in found[:3]:
            print(f"  {key}: {us:8.1f} us with {text}", flush=True)
        if found[0][0] < best:
            best, _, chosen[key] = found[0]
    print(f"best {best:.1f} us:", *(f"{key}: {shown(tiles)}" for key, tiles in chosen.items()), sep="\n  ", flush=True)


if __name__ == "__main__":
    main()
