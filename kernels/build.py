"""Compiles the C++ kernel library for an instruction-set level and reads its kernels' signatures.

Knows nothing of models and programs. The library's bytes are a function of sources, flags and compiler.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tandem.errors import CompileError

SOURCES = Path(__file__).parent / "cpu"
FLAGS = (
    "-std=c++20",
    "-O3",
    "-ffp-contract=off",  # a multiply and an add stay two roundings unless the source says fma
    "-fno-math-errno",
    "-fPIC",
    "-shared",
    "-pthread",
    "-fvisibility=default",
    "-Wl,--build-id=none",
    "-static-libstdc++",
    "-static-libgcc",
)
KINDS = {"<": "in", ">": "out", "!": "both", "=": "int", "~": "real"}


@dataclass(frozen=True, slots=True)
class Param:
    """One 8-byte argument. `kind` is in, out, both (pointers), int or real."""

    name: str
    kind: str


Signature = tuple[Param, ...]


def sources() -> list[Path]:
    return sorted(p for p in SOURCES.iterdir() if p.suffix in {".cpp", ".h"})


def sources_digest() -> str:
    """sha256 over names and bytes of all C++ sources."""
    digest = hashlib.sha256()
    for path in sources():
        data = path.read_bytes()
        digest.update(f"{path.name} {len(data)}\n".encode() + data)
    return digest.hexdigest()


def compiler() -> str:
    """Path of the C++ compiler: $CXX where it is set, else g++ or clang++."""
    wanted = os.environ.get("CXX")
    for name in (wanted,) if wanted else ("g++", "clang++"):
        if path := shutil.which(name):
            return path
    what = f"CXX={wanted} is no command" if wanted else "no C++ compiler found"
    raise CompileError(f"{what}: install g++ (apt-get install g++) or set CXX to a compiler's path")


def compiler_version(cxx: str) -> str:
    """The first line of `cxx --version`."""
    result = subprocess.run([cxx, "--version"], capture_output=True, text=True)
    if result.returncode or not result.stdout.strip():
        raise CompileError(f"{cxx} does not tell its version: install g++ or set CXX to a C++ compiler's path")
    return result.stdout.splitlines()[0]


def isa_flags(isa: str) -> Sequence[str]:
    """Machine flags of a level such as `x86-64-v3`; other levels take the compiler's baseline."""
    return [f"-march={isa}"] if isa.startswith("x86-64") else []


def build_library(isa: str, target: Path) -> Path:
    """Compiles all sources into the shared object `target`. Raises CompileError with the compiler's words."""
    cxx = compiler()
    units = [str(p) for p in sources() if p.suffix == ".cpp"]
    prefix = f"-ffile-prefix-map={SOURCES}=kernels/cpu"
    command = [cxx, *FLAGS, prefix, *isa_flags(isa), *units, "-o", str(target)]
    result = subprocess.run(command, capture_output=True, text=True)
    if result.returncode:
        raise CompileError(f"the kernel library did not compile for {isa} with {cxx}: {_reason(result)}")
    return target


def _reason(result: subprocess.CompletedProcess[str]) -> str:
    """The compiler's first error, or the linker's last word."""
    lines = [line for line in result.stderr.splitlines() if line and not line.startswith("collect2:")]
    errors = [line for line in lines if "error:" in line] or lines[-1:]
    return errors[0] if errors else f"exit code {result.returncode}"


def read_signatures(library: Path) -> dict[str, Signature]:
    """Signatures by kernel name (`linear_bf16`), in argument order, from the library's own symbols."""
    names = [
        part.split("(", 1)[1].split(",", 1)[0]
        for path in sources()
        if path.suffix == ".cpp"
        for part in path.read_text().split("\nTDM_KERNEL")[1:]
    ]
    handle = ctypes.CDLL(str(library))
    return {name: _parse(_text(handle, name)) for name in names}


def _text(handle: ctypes.CDLL, name: str) -> str:
    symbol = f"tdm_sig_{name}"
    return ctypes.string_at(ctypes.addressof(ctypes.c_char.in_dll(handle, symbol))).decode()


def _parse(text: str) -> Signature:
    return tuple(Param(word[1:], KINDS[word[0]]) for word in text.split())
