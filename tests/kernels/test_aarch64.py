"""The library compiled for aarch64, and, where it can be emulated, the bits that this machine gives."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from tandem.compile.profile import Format
from tests.kernels import layer, paged, slotted, test_elementwise, test_gates, test_norm
from tests.kernels.emulator import Emulator, build_walker
from tests.kernels.harness import assert_bits, library, normal
from tests.kernels.layer import FORMS, Layer
from tests.kernels.paged import Paged, fill, ints
from tests.kernels.recurrent import Rows
from tests.kernels.slotted import Heads, Inputs, Slotted

CXX, QEMU, ROOT = "aarch64-linux-gnu-g++", "qemu-aarch64", "/usr/aarch64-linux-gnu"

pytestmark = pytest.mark.skipif(shutil.which(CXX) is None, reason=f"needs {CXX}")


@pytest.fixture
def built(monkeypatch: pytest.MonkeyPatch) -> Path:
    with monkeypatch.context() as patch:
        patch.setenv("CXX", CXX)
        return library("aarch64")


def test_it_compiles(built: Path) -> None:
    header = subprocess.run(["readelf", "-h", built], capture_output=True, text=True, check=True).stdout
    assert "AArch64" in header


@pytest.fixture
def emulated(built: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], None]]:
    """Sends all calls that follow to the emulated machine."""
    if shutil.which(QEMU) is None:
        pytest.skip(f"needs {QEMU}")
    emulator = Emulator((QEMU, "-L", ROOT), build_walker(CXX, tmp_path), built, tmp_path)

    def begin() -> None:
        for module in (layer, paged, slotted, test_elementwise, test_gates, test_norm):
            monkeypatch.setattr(module, "call", emulator.call)

    yield begin


def assert_same(found: Callable[[], np.ndarray], emulated: Callable[[], None]) -> None:
    here = found()
    emulated()
    assert_bits(found(), here)


@pytest.mark.parametrize("form", FORMS)
def test_products(form: Format, emulated: Callable[[], None]) -> None:
    product, x = Layer(128, 150, form), normal(15, 150)
    taken = {"norm": normal(150, seed=3), "delta": normal(15, 150, seed=4), "gated": True}

    def found() -> np.ndarray:
        return np.concatenate((product(x), product(x[:1], None, 2), product(x, None, 2, **taken)), axis=None)

    assert_same(found, emulated)


@pytest.mark.parametrize("dtype", ("fp32", "bf16"))
def test_attention(dtype: str, emulated: Callable[[], None]) -> None:
    def found() -> np.ndarray:
        cache, q = Paged(2, 24, dtype), normal(9, 4, 24)
        fill(cache, 0, range(150))
        lane, position = np.zeros(9, np.int32), ints(0, 1, 15, 16, 63, 64, 65, 128, 149)
        ancestor = np.broadcast_to(np.arange(118, 150, dtype=np.int32), (9, 32)).copy()
        tree = cache.attend(q[-1:], ints(149), lane[:1], ints(118), ancestor[:1])
        return np.concatenate((cache.attend(q, position, lane), tree))

    assert_same(found, emulated)


def test_norms_and_gates(emulated: Callable[[], None]) -> None:
    x, weight = normal(5, 130) * np.float32(9), normal(130, seed=1)

    def found() -> np.ndarray:
        total, y = test_norm.add_norm(x, x[::-1].copy(), weight)
        return np.concatenate((total, y, test_norm.norm(x, weight), test_elementwise.swiglu(x)), axis=None)

    assert_same(found, emulated)


def test_recurrent_layers(emulated: Callable[[], None]) -> None:
    rows, heads = Rows.of({1: [-1, 0, 0, 1, 2, 4], 0: [-1, 0]}, [0, 3], [4, 1]), Heads(2, 4, 20, 33, channels=37)
    inputs, x, weight = Inputs.random(heads, 8), normal(8, 37), normal(4 * 37, seed=1)

    def found() -> np.ndarray:
        extended, verified = Slotted(heads, rows), Slotted(heads, rows)
        path = [0, 2, 4, 5]
        line = rows.line(path)
        out = [extended.recur(inputs.of(path), line), extended.convolve(x[path], weight, line, threads=2)]
        out += [verified.recur(inputs, rows, tree=True, threads=2), verified.convolve(x, weight, rows, tree=True)]
        verified.commit_state(rows, [path, [6]])
        verified.commit_conv(rows, [path, [6]])
        return np.concatenate([np.nan_to_num(part) for part in (*out, extended.memory, verified.memory)], axis=None)

    assert_same(found, emulated)


def test_gates_of_hybrid_layers(emulated: Callable[[], None]) -> None:
    a, b, weight = normal(5, 40) * np.float32(9), normal(5, 40, seed=1) * np.float32(9), normal(40, seed=2)

    def found() -> np.ndarray:
        normed = test_gates.gated_norm(a.reshape(5, 2, 20), b.reshape(5, 2, 20), weight[:20], True)
        parts = test_gates.gates(a, b, weight, weight), test_gates.sigmoid_gate(a, b), normed
        return np.concatenate(parts, axis=None)

    assert_same(found, emulated)
