"""Compiles Triton kernels to cubins ahead of time: no GPU is needed, and the bytes depend on source and tools alone.

Knows nothing of programs. Variants are compiled side by side, a process each.
"""

from __future__ import annotations

import atexit
import os
import re
from collections.abc import Callable, Iterable
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from multiprocessing import get_context

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from triton.experimental.gluon._runtime import GluonASTSource

from tandem.errors import CompileError
from tandem.kernels.cuda.launch import Work
from tandem.kernels.cuda.table import KERNELS

WARP = 32
TYPES = {"fp32": "*fp32", "bf16": "*bf16", "int32": "*i32", "int64": "*i64"}
FLAGS = ("enable_fp_fusion=False", "launch_pdl=True", "disable_line_info=True")
"""What of Triton's options is not left as it is, beside warps and stages."""
HIDDEN = 2
"""Pointers that Triton adds behind a kernel's own at most: scratch of its and of its profiler's, unused here."""


@dataclass(frozen=True, slots=True)
class Pointer:
    """An argument's element type, a key of TYPES, and whether it lies at a multiple of 16 bytes."""

    dtype: str
    aligned: bool


@dataclass(frozen=True, slots=True)
class Variant:
    """A kernel of the table for these pointers (None where one is left out), constants, warps and stages."""

    kernel: str
    pointers: tuple[Pointer | None, ...]
    work: Work

    @classmethod
    def of(cls, kernel: str, pointers: Iterable[Pointer | None], work: Work) -> Variant:
        """The variant that `work` needs, whatever its grid."""
        return cls(kernel, tuple(pointers), Work((1, 1, 1), work.constants, work.num_warps, work.num_stages))


@dataclass(frozen=True, slots=True)
class Cubin:
    """A compiled variant: `symbol` takes arguments of `param_sizes` bytes, the last `hidden` of them null pointers.

    `shared` is its dynamic shared memory in bytes, `threads` those of a block.
    """

    data: bytes
    symbol: str
    param_sizes: tuple[int, ...]
    hidden: int
    shared: int
    threads: int


def compile_variant(variant: Variant, capability: int) -> Cubin:
    """Compiles for compute capability `capability` (90). CompileError with the compiler's words."""
    triton.knobs.compilation.disable_line_info = True
    try:
        built = triton.compile(_source(variant), target=GPUTarget("cuda", capability, WARP), options=_options(variant))
    except Exception as error:
        reason = str(error).strip().splitlines() or [type(error).__name__]
        raise CompileError(f"Triton cannot compile {variant.kernel} for sm_{capability}: {reason[-1]}") from error
    symbol, given = built.metadata.name, sum(pointer is not None for pointer in variant.pointers)
    sizes = _param_sizes(built.asm["ptx"], symbol)
    hidden = len(sizes) - given
    if not 0 <= hidden <= HIDDEN or set(sizes) != {8}:
        raise CompileError(f"{variant.kernel} takes {sizes} bytes for {given} pointers; this Triton is not known here")
    if built.metadata.global_scratch_size or getattr(built.metadata, "profile_scratch_size", 0):
        raise CompileError(f"{variant.kernel} wants scratch of Triton's own, which no program gives it")
    threads = built.metadata.num_warps * WARP
    return Cubin(built.asm["cubin"], symbol, sizes, hidden, built.metadata.shared, threads)


def compile_variants(
    variants: Iterable[Variant], capability: int, advance: Callable[[], None] = lambda: None
) -> dict[Variant, Cubin]:
    """Every variant once, in as many processes as there are CPUs; `advance` hears of each that is done."""
    wanted = list(dict.fromkeys(variants))
    done: dict[Variant, Cubin] = {}
    # A fork would copy a process that may hold CUDA and threads.
    count = min(os.cpu_count() or 1, max(1, len(wanted)))
    with ProcessPoolExecutor(count, get_context("spawn"), initializer=_end_at_once) as pool:
        running = {pool.submit(compile_variant, variant, capability): variant for variant in wanted}
        try:
            for future in as_completed(running):
                done[running[future]] = future.result()
                advance()
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    return {variant: done[variant] for variant in wanted}


def _end_at_once() -> None:
    """For a worker, which has nothing to put in order: Triton 3.9 keeps attributes of Gluon's modules, and says so at
    length whenever an interpreter that compiled one ends."""
    atexit.register(os._exit, 0)


def _source(variant: Variant) -> ASTSource:
    kernel = KERNELS[variant.kernel]
    names = [param.name for param in kernel.signature]
    given = dict(zip(names, variant.pointers, strict=True))
    constants: dict[str, object] = {**dict(variant.work.constants), "PDL": True}
    missing = [name for name in kernel.function.arg_names if name not in given and name not in constants]
    unknown = [name for name in constants if name not in kernel.function.arg_names]
    assert not missing and not unknown, f"{variant.kernel}: constants {missing} missing, {unknown} unknown"
    constants |= {name: None for name, pointer in given.items() if pointer is None}
    signature = dict.fromkeys(kernel.function.arg_names, "constexpr")
    signature |= {name: TYPES[pointer.dtype] for name, pointer in given.items() if pointer is not None}
    attributes = {
        (kernel.function.arg_names.index(name),): [["tt.divisibility", 16]]
        for name, pointer in given.items()
        if pointer is not None and pointer.aligned
    }
    source = GluonASTSource if kernel.function.is_gluon() else ASTSource
    return source(kernel.function, signature, constants, attributes)


def _options(variant: Variant) -> dict[str, object]:
    return {
        "num_warps": variant.work.num_warps,
        "num_stages": variant.work.num_stages,
        "enable_fp_fusion": False,
        "launch_pdl": True,
    }


def _param_sizes(ptx: str, symbol: str) -> tuple[int, ...]:
    """Bytes of each parameter, as the entry's declaration in PTX lists them."""
    entry = re.search(rf"\.entry {re.escape(symbol)}\((.*?)\)", ptx, re.DOTALL)
    listed = re.findall(r"\.param \.[a-z](\d+)", entry.group(1)) if entry else []
    return tuple(int(bits) // 8 for bits in listed)
