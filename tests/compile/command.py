"""`tandem-compile` as a process on a tiny checkpoint, its compilers replaced: for tests of signals and faults.

Knows nothing of what the command writes.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

from tests.kernels.harness import ready_compiler, stand_in
from tests.warm import Process

PATIENCE_S = 120


class Command:
    """Starts the command in the empty folder `here`, its output being `b`.

    `cxx` "ready" stands for compilers that copy the tests' library, "stuck" for ones that wait for ever and leave their
    process ids in `folder`.
    """

    def __init__(self, model: Path, folder: Path) -> None:
        self.model, self.folder, self.here = model, folder, folder / "here"
        self.here.mkdir()
        self.processes: list[Process] = []
        ready_compiler(folder / "ready")
        stand_in(folder / "stuck", f'> "{folder}/$$.pid"; exec sleep 600')

    def start(self, cxx: str, *flags: str, terminal: str | None = None) -> Process:
        words = [str(self.model), "-o", "b", "--max-seq-len", "64", *flags]
        self.processes.append(Process(words, self.here, os.environ | {"CXX": str(self.folder / cxx)}, terminal))
        return self.processes[-1]

    def names(self) -> list[str]:
        """What lies in `here`; random parts of names are cut off."""
        return sorted(path.name[:11] for path in self.here.iterdir())

    def close(self) -> None:
        for process in self.processes:
            process.close()


def until(process: Process, found: Callable[[], object]) -> None:
    """Waits until `found` is true; the process must live."""
    end = time.monotonic() + PATIENCE_S
    while not found():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < end
        time.sleep(0.02)


def killed(process: Process) -> None:
    """Kill -9, and waits for the end."""
    process.kill()
    assert process.wait() in (-signal.SIGKILL, 0)


def gone(pid: int) -> bool:
    """Whether a process has ended, though nobody may have asked for its end yet."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "Z"
    except OSError:
        return True
