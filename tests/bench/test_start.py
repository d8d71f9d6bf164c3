"""What a start is measured by: memory of a live process, sizes of what lies in a folder."""

from __future__ import annotations

import mmap
import subprocess
import sys
from pathlib import Path

from start import _beyond, _size

HOLD = """
import mmap, sys
pool = mmap.mmap(-1, 1 << 30)
pool[: 64 << 20] = bytes(64 << 20)
with open(sys.argv[1], "rb") as file:
    weights = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
total = sum(weights[::4096])
print("ready", flush=True)
sys.stdin.read()
"""


def test_neither_weights_nor_the_largest_piece_of_memory_count(tmp_path: Path) -> None:
    weights = tmp_path / "weights.safetensors"
    weights.write_bytes(bytes(96 << 20))
    command = [sys.executable, "-c", HOLD, str(weights)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout and process.stdout.readline() == "ready\n"
        status = Path(f"/proc/{process.pid}/status").read_text()
        resident = next(1024 * int(line.split()[1]) for line in status.splitlines() if line.startswith("VmRSS"))
        beyond = _beyond(process.pid)
        assert process.stdin
        process.stdin.close()
    assert resident > 160 << 20
    assert 2 << 20 < beyond < 32 << 20, "an interpreter"


def test_a_size_is_that_of_all_files_below(tmp_path: Path) -> None:
    (tmp_path / "a" / "b").mkdir(parents=True)
    (tmp_path / "a" / "one").write_bytes(bytes(1000))
    (tmp_path / "a" / "b" / "two").write_bytes(bytes(mmap.PAGESIZE))
    assert _size(tmp_path / "a") == 1000 + mmap.PAGESIZE
    assert _size(tmp_path / "a" / "one") == 1000
