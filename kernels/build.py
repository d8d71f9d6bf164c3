"""Compiles the C++ kernel library for an instruction-set level and reads its kernels' signatures.

Knows nothing of models and programs. The library's bytes are a function of sources, flags and compiler.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from subprocess import DEVNULL, PIPE
from tempfile import TemporaryDirectory

from tandem.errors import CompileError
from tandem.interrupts import held_back
from tandem.kernels.signature import Signature, parse

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
BEYOND_V4 = {"-vnni": ("-mavx512vnni",), "-bf16": ("-mavx512vnni", "-mavx512bf16")}
"""Machine flags that x86-64-v4 does not imply, by the suffix of an ISA level that has them."""


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
    more = next((suffix for suffix in BEYOND_V4 if isa.endswith(suffix)), "")
    return [f"-march={isa.removesuffix(more)}", *BEYOND_V4.get(more, ())] if isa.startswith("x86-64") else []


def build_library(isa: str, target: Path) -> Path:
    """Compiles all sources into the shared object `target`. Raises CompileError with the compiler's words."""
    with library_build(isa, target) as finish:
        return finish()


@contextmanager
def library_build(isa: str, target: Path) -> Iterator[Callable[[], Path]]:
    """`build_library` beside the block's own work: the compilers start at once, a process per source.

    What the block is given waits for them and links. Leaving the block ends those that still run. Nothing is written
    but beside `target`: what is left of a build that was killed goes with that folder.
    """
    cxx = compiler()
    command = [cxx, *FLAGS, f"-ffile-prefix-map={SOURCES}=kernels/cpu", *isa_flags(isa)]
    with TemporaryDirectory(dir=target.parent) as folder:
        units = {path: Path(folder) / f"{path.stem}.o" for path in sources() if path.suffix == ".cpp"}
        running: list[subprocess.Popen[str]] = []

        def start(*words: str) -> None:
            place = os.environ | {"TMPDIR": folder}
            with held_back():
                running.append(subprocess.Popen([*command, *words], stdout=DEVNULL, stderr=PIPE, text=True, env=place))

        def finish() -> Path:
            _wait(running, isa, cxx)
            start(*map(str, units.values()), "-o", str(target))
            _wait(running[-1:], isa, cxx)
            return target

        try:
            for path, unit in units.items():
                start("-c", str(path), "-o", str(unit))
            yield finish
        finally:
            for process in running:
                with process:  # waits for its end, and closes the pipe
                    if process.poll() is None:
                        _end(process.pid)


def _end(pid: int) -> None:
    """Ends a child of this process and all below it: g++ would leave its compiler behind, at work for seconds."""
    os.kill(pid, signal.SIGSTOP)  # so that it neither starts more nor buries what ends
    with suppress(OSError):
        for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
            _end(int(child))
    os.kill(pid, signal.SIGKILL)


def _wait(processes: Sequence[subprocess.Popen[str]], isa: str, cxx: str) -> None:
    for process in processes:
        errors = process.communicate()[1]
        if process.returncode:
            reason = first_error(errors) or f"exit code {process.returncode}"
            raise CompileError(f"the kernel library did not compile for {isa} with {cxx}: {reason}")


def first_error(errors: str) -> str:
    """The compiler's first error, or the linker's last word."""
    lines = [line for line in errors.splitlines() if line and not line.startswith("collect2:")]
    return next((line for line in lines if "error:" in line), lines[-1] if lines else "")


def read_signatures(library: Path) -> dict[str, Signature]:
    """Signatures by kernel name (`linear_bf16`), in argument order, from the library's own symbols."""
    names = [
        part.split("(", 1)[1].split(",", 1)[0]
        for path in sources()
        if path.suffix == ".cpp"
        for part in path.read_text().split("\nTDM_KERNEL")[1:]
    ]
    handle = ctypes.CDLL(str(library))
    return {name: parse(_text(handle, name)) for name in names}


def _text(handle: ctypes.CDLL, name: str) -> str:
    symbol = f"tdm_sig_{name}"
    return ctypes.string_at(ctypes.addressof(ctypes.c_char.in_dll(handle, symbol))).decode()
