"""`tandem-compile` as a process on a tiny checkpoint, its compilers replaced: for tests of signals and faults.

Knows nothing of what the command writes.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.kernels.harness import ready_compiler, stand_in

PATIENCE_S = 120
PROGRAM = str(Path(sys.executable).parent / "tandem-compile")


class Command:
    """Starts the command in the empty folder `here`, its output being `b`.

    `cxx` "ready" stands for compilers that copy the tests' library, "stuck" for ones that wait for ever and leave their
    process ids in `folder`.
    """

    def __init__(self, model: Path, folder: Path) -> None:
        self.model, self.folder, self.here = model, folder, folder / "here"
        self.here.mkdir()
        self.processes: list[subprocess.Popen[str]] = []
        ready_compiler(folder / "ready")
        stand_in(folder / "stuck", f'> "{folder}/$$.pid"; exec sleep 600')

    def start(self, cxx: str, *flags: str, **streams: Any) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [PROGRAM, str(self.model), "-o", "b", "--max-seq-len", "64", *flags],
            cwd=self.here,
            env={**os.environ, "CXX": str(self.folder / cxx)},
            text=True,
            start_new_session=True,
            **{"stdout": subprocess.PIPE, "stderr": subprocess.PIPE} | streams,
        )
        self.processes.append(process)
        return process

    def names(self) -> list[str]:
        """What lies in `here`; random parts of names are cut off."""
        return sorted(path.name[:11] for path in self.here.iterdir())

    def close(self) -> None:
        for process in self.processes:
            process.kill()
            process.wait()


def until(process: subprocess.Popen[str], found: Callable[[], object]) -> None:
    """Waits until `found` is true; the process must live."""
    end = time.monotonic() + PATIENCE_S
    while not found():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < end
        time.sleep(0.02)


def killed(process: subprocess.Popen[str]) -> None:
    """Kill -9, and waits for the end."""
    process.kill()
    assert process.wait() in (-signal.SIGKILL, 0)


def gone(pid: int) -> bool:
    """Whether a process has ended, though nobody may have asked for its end yet."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "Z"
    except OSError:
        return True
