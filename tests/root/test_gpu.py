"""What is known of GPUs, asked of a driver made up here: libcuda as cuda.h declares it, with every way to fail."""

from __future__ import annotations

import ctypes
import threading
import uuid
from typing import Any

import pytest

from tandem import gpu
from tandem.gpu import Gpu, device_name, gpus, survey

H200 = {16: 132, 75: 9, 76: 0}
L4 = {16: 58, 75: 8, 76: 9}


class FakeCuda:
    """A driver of CUDA `version` with devices of these (name, attributes, bytes)."""

    def __init__(self, *devices: tuple[str, dict[int, int], int], version: int = 13000, **failures: int) -> None:
        self.devices, self.version, self.failures = devices, version, failures
        self.called: list[str] = []

    def __getattr__(self, name: str) -> Any:
        if not hasattr(type(self), f"_{name}"):
            raise AttributeError(f"undefined symbol: {name}")

        def call(*arguments: Any) -> int:
            self.called.append(name)
            if name in self.failures:
                return self.failures[name]
            assert name == "cuInit" or "cuInit" in self.called
            getattr(self, f"_{name}")(*arguments)
            return 0

        return call

    def _cuInit(self, flags: int) -> None:
        assert flags == 0

    def _cuDriverGetVersion(self, out: Any) -> None:
        out._obj.value = self.version

    def _cuDeviceGetCount(self, out: Any) -> None:
        out._obj.value = len(self.devices)

    def _cuDeviceGet(self, out: Any, index: int) -> None:
        out._obj.value = 10 + index

    def _cuDeviceGetName(self, out: Any, length: int, device: int) -> None:
        name = self.devices[device - 10][0].encode() + b"\0"
        ctypes.memmove(out, name[:length], min(len(name), length))

    def _cuDeviceGetAttribute(self, out: Any, which: int, device: int) -> None:
        out._obj.value = self.devices[device - 10][1][which]

    def _cuDevicePrimaryCtxRetain(self, out: Any, device: int) -> None:
        out._obj.value = 1000 + device

    def _cuDeviceTotalMem_v2(self, out: Any, device: int) -> None:
        out._obj.value = self.devices[device - 10][2]

    def _cuDeviceGetUuid_v2(self, out: Any, device: int) -> None:
        ctypes.memmove(out, bytes(range(device, device + 16)), 16)


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_MODULE_LOADING", "LAZY")  # and set back behind the test


def test_every_gpu_is_described_in_the_drivers_order() -> None:
    fake = FakeCuda(("NVIDIA L4", L4, 23 << 30), ("NVIDIA H200", H200, 150_000_000_000))
    first, second = gpus(fake)
    assert (first.index, first.product, first.capability, first.memory) == (0, "nvidia-l4", "8.9", 23 << 30)
    ours = uuid.UUID("0b0c0d0e-0f10-1112-1314-15161718191a")
    assert second == Gpu(1, "NVIDIA H200", "nvidia-h200", "9.0", 132, 150_000_000_000, "13.0", str(ours))
    assert device_name(second) == "cuda-sm90" and device_name(first) == "cuda-sm89"
    assert not any("Ctx" in name for name in fake.called)


def test_versions_are_major_and_minor() -> None:
    assert [gpus(FakeCuda(("x", H200, 1), version=v))[0].driver for v in (12080, 12040, 13010)] == [
        "12.8",
        "12.4",
        "13.1",
    ]


@pytest.mark.parametrize(
    ("fake", "instead"),
    [
        (FakeCuda(), "none"),
        (FakeCuda(cuInit=100), "none"),
        (FakeCuda(cuInit=803), "an NVIDIA driver that fails (cuInit: error 803)"),
        (FakeCuda(("x", H200, 1), cuDeviceGetName=999), "an NVIDIA driver that fails (cuDeviceGetName: error 999)"),
        (object(), "another library called libcuda.so.1 ('object' object has no attribute 'cuInit')"),
    ],
)
def test_no_gpu_is_an_answer_not_an_error(fake: Any, instead: str) -> None:
    assert gpus(fake) == ()
    assert survey(fake).instead == instead


def test_without_a_driver_there_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu, "LIBRARY", "libcuda-that-is-not-there.so.1")
    assert gpus() == () and survey().instead == "no NVIDIA driver"


def test_a_driver_that_is_silent_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu, "PATIENCE_S", 0.05)
    released = threading.Event()

    class Silent:
        def cuInit(self, _: int) -> int:
            released.wait()
            return 100

    found = survey(Silent())
    released.set()
    assert found.gpus == () and "silent" in found.instead


def test_modules_are_loaded_when_they_are_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """The driver reads the variable in cuInit, once in a process, and the executor wants it so."""
    import os

    seen: list[str | None] = []
    fake = FakeCuda()
    fake._cuInit = lambda flags: seen.append(os.environ.get("CUDA_MODULE_LOADING"))  # type: ignore[method-assign]
    gpus(fake)
    assert seen == ["EAGER"]


@pytest.mark.parametrize(("devices", "retained"), [(1, 1), (2, 0), (0, 0)])
def test_waking_makes_a_context_only_where_there_is_no_choice(devices: int, retained: int) -> None:
    cuda = FakeCuda(*[("NVIDIA H200", H200, 141 << 30)] * devices)
    gpu.wake(cuda).join()
    assert cuda.called[0] == "cuInit"
    assert cuda.called.count("cuDevicePrimaryCtxRetain") == retained


@pytest.mark.parametrize("failing", ["cuInit", "cuDeviceGetCount", "cuDevicePrimaryCtxRetain"])
def test_waking_a_driver_that_fails_says_nothing(failing: str, monkeypatch: pytest.MonkeyPatch) -> None:
    raised: list[object] = []
    monkeypatch.setattr(threading, "excepthook", raised.append)
    cuda = FakeCuda(("NVIDIA H200", H200, 141 << 30), **{failing: 3})
    gpu.wake(cuda).join()
    assert cuda.called[-1] == failing and not raised
