"""Loading native libraries: what is none, or another version, is refused in one line."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tandem.errors import BundleCorrupt, BundleMismatch
from tandem.kernels.build import compiler
from tandem.runtime.executor.library import LAUNCH, Library
from tests.kernels.harness import library


def test_what_is_no_library_is_refused(tmp_path: Path) -> None:
    """A cut one would end the process inside dlopen: that is what the bundle's digests are for."""
    (tmp_path / "garbage.so").write_bytes(b"no library at all")
    for path in (tmp_path / "garbage.so", tmp_path / "missing.so"):
        with pytest.raises(BundleCorrupt, match=f"{path.name}: not a kernel library of this machine") as caught:
            Library(path, 1)
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("source", "error"), [("int f() { return 1; }", BundleCorrupt), ("long tdm_abi() { return 99; }", BundleMismatch)]
)
def test_libraries_of_others_are_refused(tmp_path: Path, source: str, error: type[Exception]) -> None:
    (tmp_path / "other.cpp").write_text(f'extern "C" {source}')
    path = tmp_path / "other.so"
    subprocess.run([compiler(), "-shared", "-fPIC", tmp_path / "other.cpp", "-o", path], check=True)
    with pytest.raises(error, match=r"other\.so"):
        Library(path, 1)


@pytest.mark.parametrize("threads", [1, 2, 16])
def test_teams_start_and_end(threads: int) -> None:
    nothing = np.zeros(1, LAUNCH)
    for _ in range(5):
        team = Library(library(), threads)
        team.run(nothing.ctypes.data, 0)
        team.close()
        team.close()


def test_threads_that_cannot_be_had_are_one_clear_error() -> None:
    """Under a limit of address space in which no hundred stacks fit; the process lives on and has a smaller team."""
    script = f"""
import resource
from pathlib import Path
from tandem.errors import CapacityError
from tandem.runtime.executor.library import LAUNCH, Library
kib = int(next(line for line in open("/proc/self/status") if line.startswith("VmSize")).split()[1])
resource.setrlimit(resource.RLIMIT_AS, (kib * 1024 + (256 << 20),) * 2)
try:
    Library(Path({str(library())!r}), 400)
except CapacityError as error:
    print(error)
Library(Path({str(library())!r}), 2).close()
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "this system gives no 400 threads (ulimit -u, memory); ask for fewer\n"


def test_signatures_are_the_kernels_own() -> None:
    team = Library(library(), 1)
    assert team.signature("tdm_add") == ("<count", "<x", "=x_stride", "<z", "=z_stride", ">y", "=y_stride", "=width")
    for stranger in ("system", "tdm_run", "tdm_sig_add", "malloc", ""):
        with pytest.raises(BundleCorrupt, match=f"holds no kernel {stranger}"):
            team.address(stranger)
