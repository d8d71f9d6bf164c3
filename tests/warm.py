"""`tandem-compile` as a process that is forked from one that has imported torch: all but those seconds is the command.

Knows nothing of what it is told or of what it writes.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from multiprocessing import get_context
from pathlib import Path

IMPORTED = [
    "torch",
    "torch._dynamo",
    "torch.export",
    "gguf",
    "huggingface_hub",
    "safetensors.torch",
    "tokenizers",
    "tqdm",
]
"""Nothing of this repository: which of its trees is under test, a process finds out for itself."""

_context = get_context("forkserver")
_context.set_forkserver_preload(IMPORTED)


def _command(words: list[str], folder: str, environment: dict[str, str], out: str, err: str) -> None:
    os.setsid()
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    # A terminal is not to become this session's own: its end would be a signal.
    for number, name, flags in ((0, os.devnull, os.O_RDONLY), (1, out, os.O_WRONLY), (2, err, os.O_WRONLY)):
        os.dup2(opened := os.open(name, flags | os.O_NOCTTY), number)
        os.close(opened)
    from tandem.compile.cli import main

    sys.argv = ["tandem-compile", *words]
    main()


class Process:
    """Runs the command with `words` in `folder`, in a session of its own. `terminal`: where stderr goes."""

    def __init__(
        self, words: list[str], folder: Path, environment: Mapping[str, str], terminal: str | None = None
    ) -> None:
        self._out, self._err = (tempfile.NamedTemporaryFile("r") for _ in range(2))  # noqa: SIM115 read after its end
        given = (words, str(folder), dict(environment), self._out.name, terminal or self._err.name)
        self._process = _context.Process(target=_command, args=given)
        self._process.start()
        assert self._process.pid is not None
        self.pid = self._process.pid

    @property
    def returncode(self) -> int | None:
        return self._process.exitcode

    poll = returncode.fget

    def kill(self) -> None:
        self._process.kill()

    def wait(self, timeout: float | None = None) -> int:
        self._process.join(timeout)
        if self.returncode is None:
            raise subprocess.TimeoutExpired("tandem-compile", timeout or 0)
        return self.returncode

    def communicate(self, timeout: float | None = None) -> tuple[str, str]:
        """stdout and stderr, whole."""
        self.wait(timeout)
        return self._out.read(), self._err.read()

    def close(self) -> None:
        self.kill()
        self.wait()
        self._out.close()
        self._err.close()
