"""Calls single kernels of the C++ library on numpy arrays, and the rules that every kernel is held to.

Libraries are compiled once per sources, compiler and instruction set, and kept in pytest's cache. Knows no kernel.
"""

from __future__ import annotations

import hashlib
import os
import platform
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
import torch

from tandem.device import ISA_FLAGS
from tandem.kernels import build
from tandem.runtime.executor.library import LAUNCH, Library
from tests.once import alone

CACHE = Path(__file__).resolve().parents[2] / ".pytest_cache" / "d" / "kernels"
CANARY = np.float32(-7.77e7)
THREADS = (1, 2, 3, 5)
ROWS = 128
"""Row ids that `assert_one_arithmetic` draws from."""
Argument = np.ndarray | int | float | None
Call = tuple[str, dict[str, Argument]]
RowsOf = Callable[[Sequence[int], Path, int], np.ndarray]
"""(row ids, library, threads) -> one output per id, in that order."""


def _levels() -> tuple[str, ...]:
    """Instruction sets that this CPU runs, best first: one per form of `simd.h`, `bytes.h` and `pairs.h`."""
    if platform.machine() != "x86_64":
        return ("native",)
    flags = set(
        next(line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("flags")).split()
    )
    levels = ("x86-64-v4-bf16", "x86-64-v4-vnni", "x86-64-v4", "x86-64-v3")
    return (*(level for level in levels if flags.issuperset(ISA_FLAGS[level])), "x86-64")


LEVELS = _levels()


def kept(name: str, made_of: Sequence[str], make: Callable[[Path], Path]) -> Path:
    """What the C++ compiler makes of `made_of`, from the cache where neither has changed."""
    compiler = build.compiler_version(build.compiler())
    target = CACHE / f"{name}-{hashlib.sha256(repr((*made_of, compiler)).encode()).hexdigest()[:16]}.so"
    CACHE.mkdir(parents=True, exist_ok=True)
    with alone(CACHE / f"{name}.lock"):  # other processes wait for what this one makes
        if not target.exists():
            for stale in CACHE.glob(f"{name}-{'?' * 16}.so"):
                stale.unlink(missing_ok=True)
            make(partial := target.with_suffix(f".{os.getpid()}"))
            partial.rename(target)
    return target


@cache
def library(isa: str = LEVELS[0]) -> Path:
    """The compiled library of a level, from the cache where nothing that makes it has changed."""
    made_of = (build.sources_digest(), *build.FLAGS, *build.isa_flags(isa))
    return kept(isa, made_of, lambda target: build.build_library(isa, target))


def ready_compiler(path: Path, isa: str = LEVELS[0]) -> Path:
    """Writes to `path` what stands for a C++ compiler and gives the compiled library whatever it is asked for."""
    return stand_in(path, f'cp "{library(isa)}" "$out"')


def stand_in(path: Path, work: str) -> Path:
    """Writes to `path` what answers as a C++ compiler does; to compile `$out` it runs `work`."""
    path.write_text(
        "#!/bin/sh\ncase $1 in --version) echo 'cxx 1'; exit;; -print*) exit;; esac\n"
        f'while [ $# -gt 0 ]; do [ "$1" = -o ] && out=$2; shift; done\n{work}\n'
    )
    path.chmod(0o755)
    return path


@cache
def _team(path: Path, threads: int) -> Library:
    return Library(path, threads)


@cache
def _signatures(path: Path) -> dict[str, build.Signature]:
    return build.read_signatures(path)


class Program:
    """Kernel calls in a row, each `(kernel, arguments by name)`, with a barrier before those whose `waits` is true.

    An int given for a pointer becomes an int32 in memory, None a null pointer. Keeps every array alive.
    """

    def __init__(self, path: Path, team: Library, calls: Sequence[Call], waits: Sequence[bool] | None = None) -> None:
        self._team, self._alive = team, list[np.ndarray]()
        self._launches = np.zeros(len(calls), LAUNCH)
        for i, (kernel, arguments) in enumerate(calls):
            signature = _signatures(path)[kernel]
            assert {p.name for p in signature} == arguments.keys(), kernel
            words = np.array([self._word(p, arguments[p.name]) for p in signature], np.uint64)
            self._alive.append(words)
            self._launches[i] = (team.address(f"tdm_{kernel}"), words.ctypes.data, waits is None or waits[i])

    def _word(self, param: build.Param, value: Argument) -> np.uint64:
        if param.kind == "real":
            return np.float64(value).view(np.uint64)
        if param.kind == "int":
            return np.int64(value).view(np.uint64)
        if value is None:
            return np.uint64(0)
        memory = value if isinstance(value, np.ndarray) else np.array([value], np.int32)
        assert param.kind == "in" or memory.flags.writeable, param.name
        self._alive.append(memory)
        return np.uint64(memory.ctypes.data)

    def run(self) -> None:
        self._team.run(self._launches.ctypes.data, len(self._launches))


def call(path: Path, kernel: str, threads: int = 1, **arguments: Argument) -> None:
    """One launch of `kernel` on a team of `threads`."""
    Program(path, _team(path, threads), [(kernel, arguments)]).run()


def poisoned(x: np.ndarray, stride: int) -> np.ndarray:
    """`x` [R, W] as rows `stride` apart, with NaN behind each row's end and in three more rows."""
    out = np.full((len(x) + 3, stride), np.nan, np.float32)
    out[: len(x), : x.shape[1]] = x
    return out


def canvas(rows: int, stride: int) -> np.ndarray:
    """Float32 [rows + 3, stride] of canaries to write into."""
    return np.full((rows + 3, stride), CANARY, np.float32)


def written(y: np.ndarray, rows: int, width: int) -> np.ndarray:
    """The part [rows, width] of a canvas; nothing outside of it may have been touched."""
    assert (y[rows:] == CANARY).all() and (y[:, width:] == CANARY).all()
    return y[:rows, :width].copy()


def normal(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def rounded(x: np.ndarray, dtype: torch.dtype) -> torch.Tensor:
    """`x` as a tensor of the stored type: the values that kernel and oracle share."""
    return torch.from_numpy(x).to(dtype)


def assert_bits(found: np.ndarray, wanted: np.ndarray, what: object = "") -> None:
    """Equal bit patterns; NaN equals the same NaN, zero differs from minus zero."""
    kind = f"u{found.dtype.itemsize}"
    differ = np.flatnonzero(np.ascontiguousarray(found).view(kind) != np.ascontiguousarray(wanted).view(kind))
    assert found.shape == wanted.shape and found.dtype == wanted.dtype
    assert differ.size == 0, f"{what}: {differ.size} of {found.size} elements differ, first at {differ[0]}"


@dataclass(frozen=True, slots=True)
class Error:
    """Distance from float64: root mean square and the largest."""

    rms: float
    worst: float


def error(found: object, exact: object) -> Error:
    away = np.abs(np.asarray(found, np.float64) - np.asarray(exact, np.float64))
    return Error(float(np.sqrt((away**2).mean())), float(away.max()))


def assert_accurate(found: np.ndarray, exact: object, plain: Error) -> None:
    """At most twice the error of plain fp32, or one ulp of the largest value.

    Errors are compared in the mean, with room for the spread of small samples; the largest may be four times its like.
    """
    exact = np.asarray(exact, np.float64)
    assert found.shape == exact.shape and np.isfinite(found).all()
    here, ulp = error(found, exact), np.abs(exact).max() * 2.0**-23
    assert here.rms <= 2 * plain.rms * (1 + 2 / found.size**0.5) + ulp / 4, f"{here}, plain fp32 {plain}"
    assert here.worst <= 4 * plain.worst + ulp, f"{here}, plain fp32 {plain}"


def assert_one_arithmetic(rows_of: RowsOf) -> None:
    """A row's bits do not depend on the rows beside it, its place, the thread count or the instruction set."""
    native, ids = library(), list(range(ROWS))
    everything = rows_of(ids, native, 1)
    for threads in THREADS[1:]:
        assert_bits(rows_of(ids, native, threads), everything, f"{threads} threads")
    for level in LEVELS[1:]:
        assert_bits(rows_of(ids[:37], library(level), 2), everything[:37], level)
    rng = np.random.default_rng(0)
    for count in (*range(1, 14), 16, 17, 23, 24, 31, 32):
        for place in {0, count // 2, count - 1}:
            beside = rng.permutation(ROWS)[:count].tolist()
            found = rows_of(beside, native, 1 + count % 3)
            assert_bits(found[place], everything[beside[place]], f"row {place} of {count}")
    for level in LEVELS[1:]:
        for count in (1, 2, 4, 7):
            assert_bits(rows_of(ids[-count:], library(level), 1), everything[-count:], f"{level}, {count} rows")
