"""Proof, oracle and prices, taken by the runtime in a process of its own: what is measured is what will serve.

The two wings never import each other; this is a pipe between them.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from subprocess import PIPE
from typing import Any

import msgspec

from tandem.artifacts.io import Geometry
from tandem.errors import CompileError, ProofError
from tandem.interrupts import held_back
from tandem.keys import Kind

MODULE = "tandem.runtime.checks.staged"


@dataclass(frozen=True, slots=True)
class Staged:
    """Files of a CPU bundle that is not sealed yet, as the runtime's process wants them. `geometry`: the programs'."""

    geometry: Geometry
    weights: Path
    library: Path
    programs: dict[Kind, Path]
    threads: int

    def request(self) -> dict[str, Any]:
        """The files in plain JSON values."""
        return {
            "device": "cpu",
            "geometry": asdict(self.geometry),
            "weights": str(self.weights),
            "library": str(self.library),
            "programs": {kind.value: str(path) for kind, path in self.programs.items()},
            "threads": self.threads,
        }


@dataclass(frozen=True, slots=True)
class StagedProgram:
    """The program file of one entry. Entries that share a program name the same file."""

    kind: Kind
    context_class: int
    rows: int
    path: Path


@dataclass(frozen=True, slots=True)
class StagedCuda:
    """The same of a CUDA bundle.

    `cubins` is the folder of <sha256>.cubin, `copier` the library that brings weights to a GPU, `device_index` counts
    the GPUs in sight.
    """

    geometry: Geometry
    weights: Path
    cubins: Path
    copier: Path
    programs: tuple[StagedProgram, ...]
    device_index: int = 0

    def request(self) -> dict[str, Any]:
        """The files in plain JSON values."""
        return {
            "device": "cuda",
            "geometry": asdict(self.geometry),
            "weights": str(self.weights),
            "cubins": str(self.cubins),
            "copier": str(self.copier),
            "programs": [
                {"kind": p.kind.value, "context_class": p.context_class, "rows": p.rows, "path": str(p.path)}
                for p in self.programs
            ],
            "device_index": self.device_index,
        }


def examine(staged: Staged | StagedCuda, advance: Callable[[str], None]) -> dict[str, Any]:
    """The `proof`, `oracle` and `prices` of staged files. `advance` hears of each step by name.

    Raises ProofError when a bit moved, CompileError when the process did not come to an end.
    """
    result = converse(MODULE, staged.request(), advance)
    if result["proof"]["differing"]:
        first = result["proof"]["first"][0]
        raise ProofError(
            f"{result['proof']['differing']} of {result['proof']['cases']} comparisons differ, first: {first}; "
            "this is a defect of the kernels, please report it"
        )
    return result


class _Message(msgspec.Struct):
    """A line of the process: a step that it takes, or at its end the result."""

    step: str = ""
    result: dict[str, Any] | None = None


def converse(module: str, request: dict[str, Any], advance: Callable[[str], None]) -> dict[str, Any]:
    """The answer of a process that runs `module` of the runtime. `advance` hears of its steps.

    CompileError when it ends without an answer; however this ends, no process stays.
    """
    command = [sys.executable, "-P", "-m", module]
    with tempfile.TemporaryFile() as asked, tempfile.TemporaryFile("w+", errors="replace") as errors:
        asked.write(json.dumps(request).encode())
        asked.seek(0)
        child: subprocess.Popen[bytes] | None = None
        try:
            with held_back():
                child = subprocess.Popen(command, stdin=asked, stdout=PIPE, stderr=errors, env=_environment())
            if (result := _listen(child, advance)) is not None:
                return result
            child.wait()
        finally:
            if child is not None:
                with child:  # waits for its end, and closes the pipe
                    child.kill()
        errors.seek(0)
        last = errors.read().strip().splitlines()[-1:] or [f"exit code {child.returncode}, and not a word"]
    raise CompileError(f"the proving process ended early: {last[0]}")


def _listen(child: subprocess.Popen[bytes], advance: Callable[[str], None]) -> dict[str, Any] | None:
    """The result, or None where the process ends without one."""
    assert child.stdout is not None
    with child.stdout as lines:
        for line in lines:
            try:
                message = msgspec.json.decode(line, type=_Message)
            except msgspec.DecodeError:
                raise CompileError(f"the proving process wrote what is no message: {line[:80]!r}") from None
            if message.result is not None:
                return message.result
            advance(message.step)
    return None


def _environment() -> dict[str, str]:
    """This process's environment with its import path, since -P keeps the current folder out."""
    return {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
