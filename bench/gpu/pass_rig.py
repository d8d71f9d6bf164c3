"""A model on the device whose pass may be lowered anew with other tiles and timed: what `tune_pass` turns.

Knows nothing of bundles: programs are lowered, compiled and built as graphs right here.
"""

from __future__ import annotations

import argparse
import hashlib
import math
import os
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from itertools import product
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from bench.gpu.device import Device, some
from bench.gpu.pass_candidates import Attention, Chosen
from bench.gpu.passes import Passes
from bench.gpu.random_checkpoint import RandomCheckpoint
from bench.gpu.shapes import SHAPES
from tandem.artifacts.program import FULL, Program
from tandem.artifacts.weights import MappedWeights
from tandem.compile.cuda import products, rules_attention
from tandem.compile.cuda import rows as layout
from tandem.compile.cuda.composer import CudaComposer
from tandem.compile.cuda.entries import Shape
from tandem.compile.cuda.programs import encode_program, lower
from tandem.compile.cuda.target import CudaTarget
from tandem.compile.models.families import resolve
from tandem.compile.models.spec import HybridSpec, LlamaSpec
from tandem.compile.profile import find_profile
from tandem.compile.store import write_weights
from tandem.errors import CompileError, DeviceError
from tandem.kernels.cuda import linear, linear_rotary, linear_tiles, parts
from tandem.kernels.cuda.build import Cubin, Variant, compile_variant
from tandem.kernels.cuda.copier import build_copier
from tandem.kernels.cuda.launch import Work
from tandem.kernels.cuda.linear_tiles import FewTiles, Matrix
from tandem.keys import Kind
from tandem.runtime.executor.cuda.executor import CudaExecutor, Image
from tandem.runtime.executor.cuda.graphs import build
from tandem.runtime.executor.cuda.modules import Modules

FILL = 64
"""Rows of a pass that fills the cache."""


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
        self._composer = CudaComposer(spec, profile, geometry, MappedWeights(folder / "w"))
        both = args.kind is Kind.EXTEND and not geometry.recurrent_layers
        kinds = (Kind.EXTEND, Kind.VERIFY_CHAIN) if both else (args.kind,)
        bound = next(c for c in (1024, 2048, 4096, 8192, 16384, 32768) if args.at + args.rows <= c)
        self._shape = Shape(kinds, min(bound, args.context), args.rows)
        self.attention: Attention | None = None
        self.head_dim = spec.head_dim
        self._cubins: dict[Variant, Cubin] = {}
        self._data: dict[str, bytes] = {}
        filling = self.program({}, Shape((Kind.EXTEND,), 0, FILL))
        first = self.program({})
        programs = [(kind, self._shape.context_class, args.rows, first) for kind in kinds]
        programs += [(Kind.EXTEND, 0, FILL, filling)]
        image = Image(geometry, folder / "w", programs, self._data, build_copier(folder / "copier.so"))
        self.executor = CudaExecutor(image, num_pages=args.at // 64 + 66)
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
        with _instead(note, parts.splits):
            lower(self._composer, self._shape)
        return list(seen)

    def program(self, chosen: Chosen, shape: Shape | None = None) -> Program:
        with _choosing(chosen), self._attending():
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

    def compile_for(self, options: list[Chosen], attentions: Sequence[Attention | None] = ()) -> None:
        """Every kernel that any of `options` needs, with any of `attentions`, side by side."""
        wanted = set[Variant]()
        spec = shortened(self._composer.spec)
        for chosen, attention in product(options, attentions or (self.attention,)):
            self.attention = attention
            with _choosing(chosen), self._attending():
                wanted |= lower(replace(self._composer, spec=spec), self._shape).variants()
        self.compile(wanted)

    @contextmanager
    def _attending(self) -> Iterator[None]:
        """While it is entered, attention has the tiles of `attention`, if any."""
        usual = rules_attention.attention_works

        def works(*args: Any, **sizes: Any) -> list[tuple[str, Work]]:
            if self.attention is None or sizes["rows"] > linear_tiles.MAX_FEW_ROWS:
                return usual(*args, **sizes)
            tiles, folding = self.attention
            split, (name, fold) = usual(*args, **sizes, tiles=tiles)
            if folding:
                warps, depth, columns = folding
                facts = dict(fold.constants) | {"DEPTH": depth}
                if "BV" in facts:
                    facts["BV"] = columns
                    fold = replace(fold, grid=(*fold.grid[:2], sizes["head_dim"] // columns))
                fold = replace(fold, num_warps=warps, constants=tuple(sorted(facts.items())))
            return [split, (name, fold)]

        rules_attention.attention_works = works  # type: ignore[assignment]
        try:
            yield
        finally:
            rules_attention.attention_works = usual

    def us(self, chosen: Chosen, *, early: bool = True) -> float:
        """Microseconds of the pass with these tiles, or infinity where they do not fit.

        Without `early` each launch begins where the last one ends.
        """
        try:
            program = self.program(chosen)
        except KeyError:
            return math.inf
        if not early:
            program.edges["type"], program.edges["from_port"] = FULL, 0
        return self.us_of(program)

    def us_of(self, program: Program) -> float:
        executor = self.executor
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

    def parts_of(self, chosen: Chosen) -> Iterator[str]:
        """A line per kernel of the pass: its launches alone in a row, and how much faster the pass is without them."""
        program = self.program(chosen)
        whole = self.us_of(program)
        for which, kernel in enumerate(program.kernels):
            mine = program.launches[program.launches["kernel"] == which]
            own = self.us_of(some(program, lambda k, b=kernel.binary: k.binary == b))
            without = whole - self.us_of(some(program, lambda k, b=kernel.binary: k.binary != b))
            grid = tuple(mine[0]["grid"].tolist())
            each = f"{own / len(mine):7.2f} us alone, {without / len(mine):7.2f} of the pass"
            yield f"{kernel.symbol:<16} {len(mine):3} x {each}, grid {grid}, shared {kernel.shared}"


def shortened(spec: LlamaSpec) -> LlamaSpec:
    """A model of the same kernels in fewer layers: all layers of a type have the same."""
    if not isinstance(spec, HybridSpec):
        return replace(spec, num_hidden_layers=2)
    first = 1 + max(spec.layer_types.index(layer_type) for layer_type in set(spec.layer_types))
    types = spec.layer_types[: max(2, first)]
    return replace(spec, num_hidden_layers=len(types), layer_types=types)


class _instead:
    """While it is entered, linears ask `tiles` for tiles and `splits` for parts."""

    def __init__(self, tiles: object, splits: object) -> None:
        self._tiles, self._splits = tiles, splits

    def __enter__(self) -> None:
        self._usual = linear.few_tiles, products.splits
        linear.few_tiles = linear_rotary.few_tiles = self._tiles  # type: ignore[assignment]
        products.splits = self._splits  # type: ignore[assignment]

    def __exit__(self, *_: object) -> None:
        linear.few_tiles, products.splits = self._usual
        linear_rotary.few_tiles = linear.few_tiles


def _choosing(chosen: Chosen) -> _instead:
    def tiles(m: Matrix, rows: int) -> FewTiles:
        option = chosen.get((m.n, m.k, m.gated)) if rows <= linear_tiles.MAX_FEW_ROWS else None
        return option[0] if option else linear_tiles.few_tiles(m, rows)

    def splits(n: int, k: int) -> int:
        option = chosen.get((n, k, False))
        return option[1] if option else parts.splits(n, k)

    return _instead(tiles, splits)
