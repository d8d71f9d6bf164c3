"""What this machine is, and how much of it other programs take while something runs.

Knows nothing of benchmarks.
"""

from __future__ import annotations

import os
import platform
import time
from pathlib import Path

TICK = 1 / os.sysconf("SC_CLK_TCK")


def describe() -> str:
    """The processor's name and how many of its cores are ours."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        name = next(line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        name = platform.machine()
    return f"{name}, {os.cpu_count()} cores"


class Watch:
    """Processor time of the whole machine against that of one process, from now on."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._start = time.perf_counter(), _busy(), self._own()

    def foreign_cores(self) -> float:
        """Cores that were busy since then with anything but the process (and this one); clocks tick every 10 ms."""
        start, busy, own = self._start
        seconds = time.perf_counter() - start
        return max(0.0, (_busy() - busy) - (self._own() - own)) / max(seconds, 0.1)

    def _own(self) -> float:
        mine = os.times()
        try:
            # Fields 14 and 15, counted behind the name, which may hold spaces: user and system time.
            fields = Path(f"/proc/{self._pid}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            return 0.0
        return mine.user + mine.system + TICK * (int(fields[11]) + int(fields[12]))


def _busy() -> float:
    """Seconds that all cores together were not idle, since the machine started."""
    fields = [int(field) for field in Path("/proc/stat").read_text().splitlines()[0].split()[1:]]
    user, nice, system, _idle, _iowait, irq, softirq, *_ = fields
    return TICK * (user + nice + system + irq + softirq)
