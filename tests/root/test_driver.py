"""The driver's calls as C sees them, on the fake of it; what fails says call, name and remedy."""

from __future__ import annotations

import os
from collections.abc import Iterator

import numpy as np
import pytest

from tandem.driver import Driver
from tandem.errors import DeviceError
from tandem.libcuda import SIGNATURES
from tests.fake_device import make_cubin
from tests.fake_driver import FakeCuda, driver_on


@pytest.fixture
def cuda() -> FakeCuda:
    return FakeCuda()


@pytest.fixture
def driver(cuda: FakeCuda) -> Iterator[Driver]:
    with driver_on(cuda) as made:
        yield made


def test_kernels_are_loaded_with_their_modules(monkeypatch: pytest.MonkeyPatch, cuda: FakeCuda) -> None:
    monkeypatch.delenv("CUDA_MODULE_LOADING", raising=False)
    Driver(cuda)
    assert os.environ["CUDA_MODULE_LOADING"] == "EAGER"
    assert cuda.calls == ["cuInit"]


def test_facts_of_the_device(driver: Driver) -> None:
    device = driver.device(0)
    assert (driver.version(), driver.device_count(), driver.device_name(device)) == (13000, 1, "Fake GPU")
    assert driver.capability(device) == 90
    assert driver.memory() == (1 << 33, 1 << 33)


def test_bytes_travel_there_and_back(driver: Driver) -> None:
    stream, there, back = driver.stream(), driver.host_alloc(64), np.zeros(64, np.uint8)
    source = np.arange(64, dtype=np.uint8)
    memory = driver.alloc(64)
    driver.fill(memory, 0x5A, 64, stream)
    pinned = np.ctypeslib.as_array((np.ctypeslib.as_ctypes_type(np.uint8) * 64).from_address(there))
    pinned[:] = source
    driver.to_device(memory + 32, there, 32, stream)
    driver.to_host(back.ctypes.data, memory, 64, stream)
    driver.synchronize(stream)
    assert back.tolist() == [0x5A] * 32 + list(range(32))
    driver.free(memory)
    driver.host_free(there)
    driver.stream_destroy(stream)


def test_events_pass_when_their_stream_gets_there(driver: Driver) -> None:
    stream, memory, first, last = driver.stream(), driver.alloc(8), driver.event(timing=True), driver.event(timing=True)
    driver.record(first, stream)
    driver.fill(memory, 0, 8, stream)
    driver.record(last, stream)
    driver.wait(last)
    assert driver.elapsed_ms(first, last) == 1.0
    for event in (first, last):
        driver.event_destroy(event)
    driver.free(memory)
    driver.stream_destroy(stream)


def test_a_function_tells_its_parameters(driver: Driver, cuda: FakeCuda) -> None:
    module = driver.module(make_cubin({"step": (8, 4, 8), "none": ()}))
    function = driver.function(module, "step")
    assert driver.param_sizes(function) == (8, 4, 8)
    assert driver.param_sizes(driver.function(module, "none")) == ()
    assert cuda.counts["cuFuncLoad"] == 2
    driver.module_unload(module)


def test_no_call_of_the_table_captures() -> None:
    assert not [name for name in SIGNATURES if "Capture" in name]


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (2, r"cuMemAlloc_v2 says CUDA_ERROR_OUT_OF_MEMORY \(2: as the fake says\); free memory on this GPU"),
        (719, r"cuMemAlloc_v2 says CUDA_ERROR_LAUNCH_FAILED \(719: .*\); a kernel went wrong: restart the process"),
        (12345, r"cuMemAlloc_v2 says CUDA_ERROR_UNKNOWN \(12345: .*\); look at nvidia-smi"),
    ],
)
def test_a_failure_says_call_name_and_remedy(driver: Driver, cuda: FakeCuda, code: int, words: str) -> None:
    cuda.fail_at, cuda.code = len(cuda.calls), code
    with pytest.raises(DeviceError, match=words) as caught:
        driver.alloc(64)
    assert (caught.value.call, caught.value.code) == ("cuMemAlloc_v2", code)


def test_too_little_memory_of_the_host_is_not_the_gpus(driver: Driver, cuda: FakeCuda) -> None:
    cuda.fail_at, cuda.code = len(cuda.calls), 2
    with pytest.raises(DeviceError, match=r"cuMemHostAlloc says CUDA_ERROR_OUT_OF_MEMORY .*; free memory of the host"):
        driver.host_alloc(64)


@pytest.mark.parametrize("call", ["cuFuncGetParamInfo", "cuGraphLaunch"])
def test_calls_with_answers_of_their_own_fail_as_others_do(driver: Driver, cuda: FakeCuda, call: str) -> None:
    cuda.fail_at, cuda.code = len(cuda.calls), 700
    ask = {"cuFuncGetParamInfo": driver.param_sizes}
    with pytest.raises(DeviceError, match=f"{call} says"):
        ask[call](1) if call in ask else driver.launch(1, 2)


def test_no_gpu_and_no_such_gpu() -> None:
    with pytest.raises(DeviceError, match=r"cuInit says .*100.*; no GPU is visible.*CUDA_VISIBLE_DEVICES"):
        Driver(FakeCuda(devices=0))
    with pytest.raises(DeviceError, match=r"cuDeviceGet says .*101.*; there is no GPU of that number"):
        Driver(FakeCuda(devices=2)).device(2)
