"""Compiles the library that brings weights to a GPU, from `host/copy.cpp`.

It computes nothing: no bit of any result depends on it. Its bytes are a function of source, flags and compiler.
"""

from __future__ import annotations

import subprocess
from pathlib import Path

from tandem.errors import CompileError
from tandem.kernels.build import compiler, first_error

SOURCE = Path(__file__).parent / "host" / "copy.cpp"
FLAGS = (
    *("-std=c++20", "-O2", "-fPIC", "-shared", "-pthread", "-s"),
    *("-Wl,--build-id=none", "-static-libstdc++", "-static-libgcc"),
)
"""For any processor of this machine's kind: it moves bytes, and needs no newer instructions for that."""


def build_copier(target: Path) -> Path:
    """Compiles the shared object `target`, which it returns. Raises CompileError with the compiler's words."""
    cxx = compiler()
    command = [cxx, *FLAGS, f"-ffile-prefix-map={SOURCE.parent}=kernels/cuda/host", str(SOURCE), "-o", str(target)]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        reason = first_error(done.stderr) or f"exit code {done.returncode}"
        raise CompileError(f"the library that copies weights did not compile with {cxx}: {reason}")
    return target
