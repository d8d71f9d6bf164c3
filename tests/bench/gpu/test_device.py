"""Launches picked out of a program, and the driver's structs for capturing them."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bench.gpu.device import Device, LaunchAttribute, LaunchConfig, some
from tandem.artifacts.program import EDGE, LAUNCH, PARAM, Kernel, Program, Region
from tandem.driver import Driver
from tandem.keys import Kind
from tandem.runtime.executor.cuda.executor import CudaExecutor
from tests.fake_driver import FakeCuda
from tests.runtime.executor.cuda import sample


def program() -> Program:
    """Launches of linear, glue, linear, norm over one argument each."""
    launches = np.zeros(4, LAUNCH)
    launches["kernel"], launches["first_param"], launches["num_params"] = [0, 1, 0, 2], [0, 1, 2, 3], 1
    launches["grid"] = launches["block"] = 1
    edges = np.zeros(3, EDGE)
    edges["source"], edges["target"] = [0, 1, 2], [1, 2, 3]
    kernels = tuple(Kernel("0" * 64, symbol, (8,)) for symbol in ("linear", "glue", "add_rms_norm"))
    return Program(kernels, (Region("scratch", 64),), launches, np.zeros(4, PARAM), edges)


def test_some_launches_follow_each_other_as_programs_have_them() -> None:
    found = some(program(), lambda kernel: kernel.symbol.startswith("linear"))
    assert found.launches["first_param"].tolist() == [0, 2]
    assert found.edges[["source", "target", "from_port", "to_port", "type"]].tolist() == [(0, 1, 1, 0, 1)]
    assert found.params is not None and len(found.params) == 4


def test_one_launch_and_none_have_no_edges() -> None:
    assert len(some(program(), lambda kernel: kernel.symbol.endswith("rms_norm")).edges) == 0
    assert len(some(program(), lambda kernel: False).launches) == 0


def test_structs_have_the_sizes_and_offsets_of_cuda_h() -> None:
    assert ctypes.sizeof(LaunchAttribute) == 72
    assert LaunchAttribute.value.offset == 8
    assert ctypes.sizeof(LaunchConfig) == 56
    offsets = [getattr(LaunchConfig, name).offset for name in ("shared", "stream", "attributes", "num_attributes")]
    assert offsets == [24, 32, 40, 48]
    config = LaunchConfig((1, 2, 3), (4, 5, 6), 7, 8, ctypes.pointer(LaunchAttribute(6, 0, 1)), 1)
    assert bytes(config)[:28] == np.array([1, 2, 3, 4, 5, 6, 7], "<u4").tobytes()
    assert config.attributes[0].value == 1


@pytest.fixture
def gpu(tmp_path: Path) -> Iterator[tuple[FakeCuda, CudaExecutor, list[list[str]]]]:
    """A fake GPU, an executor on it, and the symbols that each launch of a graph ran."""
    ran: list[list[str]] = []
    cuda = FakeCuda(run=lambda nodes: ran.append([node.function.symbol for node in nodes]))
    executor = CudaExecutor(sample.image(tmp_path), num_pages=4, driver=Driver(cuda))
    executor.finish()
    ran.clear()
    yield cuda, executor, ran
    executor.close()
    assert cuda.faults == []
    assert not cuda.left()


def test_a_graph_is_timed_by_launches_in_a_row(gpu: tuple[FakeCuda, CudaExecutor, list[list[str]]]) -> None:
    _, executor, ran = gpu
    found = Device(executor).graph_ms(Kind.EXTEND, 900, 1, repeats=4)
    # The fake's clock counts what was queued: a launch takes one.
    assert found.runs == (1, 1, 1, 1)
    assert len(ran) == 3 + 3 + 4 * 25
    assert ran[0] == ["first", "second", "third"]


def test_some_launches_run_and_leave_nothing_behind(gpu: tuple[FakeCuda, CudaExecutor, list[list[str]]]) -> None:
    cuda, executor, ran = gpu
    device, before = Device(executor), len(cuda.live["executable"])
    part = some(device.program(Kind.VERIFY_TREE, 900, 3), lambda kernel: kernel.symbol != "second")
    with device.restored(part) as graph:
        device.ms(graph, 1)
        assert len(cuda.live["executable"]) == before + 1
    assert ran[0] == ["first", "third"]
    assert len(cuda.live["executable"]) == before


def test_sides_are_timed_in_turn(gpu: tuple[FakeCuda, CudaExecutor, list[list[str]]]) -> None:
    _, executor, _ = gpu
    device = Device(executor)
    program = device.program(Kind.EXTEND, 900, 1)
    with device.restored(program) as one, device.restored(program) as other:
        found = device.interleaved_ms({"one": one, "other": other}, 3)
    assert {name: len(spread.runs) for name, spread in found.items()} == {"one": 3, "other": 3}


def test_a_capture_launches_each_node_as_the_program_says(
    gpu: tuple[FakeCuda, CudaExecutor, list[list[str]]], monkeypatch: pytest.MonkeyPatch
) -> None:
    cuda, executor, _ = gpu
    calls: list[tuple[str, object]] = []

    def call(name: str, *arguments: Any) -> None:
        calls.append((name, None))
        if name == "cuLaunchKernelEx":
            config = arguments[0]._obj
            calls[-1] = (name, (tuple(config.grid), tuple(config.block), config.shared, config.num_attributes))
            assert arguments[1].value in cuda.functions
        if name == "cuStreamEndCapture":
            arguments[1]._obj.value = executor._driver.graph()

    monkeypatch.setattr("bench.gpu.device._call", call)
    device = Device(executor)
    with device.captured(device.program(Kind.EXTEND, 900, 1)):
        pass
    assert [name for name, _ in calls] == ["cuStreamBeginCapture_v2", *["cuLaunchKernelEx"] * 3, "cuStreamEndCapture"]
    assert calls[1][1] == ((3, 2, 1), (128, 1, 1), 0, 0)
    assert calls[2][1] == ((4, 2, 1), (128, 1, 1), 100_000, 1)
