"""How fast this machine reads memory: `stream.cpp`, compiled here and asked between the runs of a figure.

Knows nothing of sides.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from pathlib import Path
from types import TracebackType

SOURCE = Path(__file__).with_name("stream.cpp")
MEGABYTES = 512
REPEATS = 5


class BandwidthError(Exception):
    """The reader cannot be compiled; the message is one line."""


class Reader:
    """The compiled reader, idle between calls of `gigabytes`. Use it in a `with` block."""

    def __init__(self, threads: int) -> None:
        compiler = os.environ.get("CXX", "g++")
        if shutil.which(compiler) is None:
            raise BandwidthError(f"no {compiler} to compile {SOURCE.name} with; install one, or name yours in CXX")
        self._folder = tempfile.TemporaryDirectory()
        program = Path(self._folder.name) / "stream"
        words = [compiler, "-O3", "-march=native", "-pthread", str(SOURCE), "-o", str(program)]
        done = subprocess.run(words, capture_output=True, text=True)
        if done.returncode != 0:
            raise BandwidthError(f"{compiler} cannot compile {SOURCE.name}: {done.stderr.strip().splitlines()[0]}")
        pipe = subprocess.PIPE
        words = [str(program), str(threads), str(MEGABYTES), str(REPEATS)]
        self._child = subprocess.Popen(words, stdin=pipe, stdout=pipe, text=True)

    def gigabytes(self) -> float:
        """Billions of bytes a second: the best of a few passes."""
        assert self._child.stdin is not None and self._child.stdout is not None
        self._child.stdin.write("\n")
        self._child.stdin.flush()
        return float(self._child.stdout.readline())

    def __enter__(self) -> Reader:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self._child.communicate()
        self._folder.cleanup()
