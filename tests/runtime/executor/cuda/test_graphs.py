"""Graphs from programs: structs byte by byte against NVIDIA's header, edges as they were, faults by name."""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from random import Random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tandem.artifacts.program import EDGE, Program
from tandem.driver import Driver
from tandem.errors import BundleCorrupt, DeviceError
from tandem.runtime.executor.cuda import graphs
from tests.fake_device import make_cubin
from tests.fake_driver import FakeCuda
from tests.runtime.executor.cuda.sample import KERNELS, SIZES, program

BASES = {"weights": 0x7F00_0000_0000, "kv": 0x7F10_0000_0000, "io": 0x7F20_0000_0000, "scratch": 0x7F30_0000_0000}
ELSEWHERE = {"weights": 0x1000, "kv": 0x2000, "io": 0x30_0000, "scratch": 0x4_0000}
HANDLES = np.array([0xAAA0, 0xBBB0, 0xCCC0], np.uint64)
FIELDS = {
    "type": "type",
    "function": "kernel.func",
    "grid": "kernel.gridDimX",
    "block": "kernel.blockDimX",
    "shared": "kernel.sharedMemBytes",
    "params": "kernel.kernelParams",
    "extra": "kernel.extra",
    "kernel": "kernel.kern",
    "context": "kernel.ctx",
}


def test_structs_lie_as_cuda_h_says(tmp_path: Path) -> None:
    found = importlib.util.find_spec("triton")
    folder = Path((found.submodule_search_locations or [""])[0] if found else "", "backends/nvidia/include")
    if not (folder / "cuda.h").is_file() or not shutil.which("g++"):
        pytest.skip("no cuda.h or no compiler to read it with")
    offsets = {name: place[1] for name, place in (graphs.NODE.fields or {}).items()}
    edge = {
        name: place[1] - 8 for name, place in (EDGE.fields or {}).items() if name in ("from_port", "to_port", "type")
    }
    checks = [f"offsetof(CUgraphNodeParams, {field}) == {offsets[name]}" for name, field in FIELDS.items()]
    checks += [f"offsetof(CUgraphEdgeData, {name}) == {offset}" for name, offset in edge.items()]
    checks += [f"sizeof(CUgraphNodeParams) == {graphs.NODE.itemsize}", "sizeof(CUgraphEdgeData) == 8"]
    checks += [f"CU_GRAPH_NODE_TYPE_KERNEL == {graphs.KERNEL_NODE}", "CU_GRAPH_DEPENDENCY_TYPE_PROGRAMMATIC == 1"]
    checks += ["CU_GRAPH_KERNEL_NODE_PORT_PROGRAMMATIC == 1", "CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES == 8"]
    checks += ["CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT == 9", "CU_SHAREDMEM_CARVEOUT_MAX_SHARED == 100"]
    source = tmp_path / "layout.cpp"
    source.write_text("#include <cstddef>\n#include <cuda.h>\n" + "".join(f"static_assert({c});\n" for c in checks))
    subprocess.run(["g++", "-std=c++17", f"-I{folder}", "-fsyntax-only", str(source)], check=True)


@pytest.mark.parametrize("bases", [BASES, ELSEWHERE])
def test_nodes_byte_by_byte(bases: dict[str, int]) -> None:
    nodes = graphs.Nodes.of(program(0xDEAD), HANDLES, bases)
    assert nodes.words.tolist() == [
        word for i in range(3) for word in (bases["io"], bases["weights"] + 64 + 32 * i, bases["scratch"], 0xDEAD)
    ]
    first = nodes.words.ctypes.data
    assert nodes.pointers.tolist() == [first + 8 * i for i in range(12)]
    data = nodes.structs.tobytes()
    assert len(data) == 3 * 256
    for i, shared in enumerate((0, 100_000, 1000)):
        numbers = (3 + i, 2, 1, 128, 1, 1, shared)
        params = nodes.pointers.ctypes.data + 8 * 4 * i
        assert data[256 * i : 256 * (i + 1)] == (
            bytes(16)
            + int(HANDLES[i]).to_bytes(8, "little")
            + b"".join(number.to_bytes(4, "little") for number in numbers)
            + bytes(4)
            + params.to_bytes(8, "little")
            + bytes(256 - 64)
        )


@pytest.fixture
def cuda() -> FakeCuda:
    return FakeCuda()


@pytest.fixture
def driver(cuda: FakeCuda) -> Iterator[Driver]:
    made = Driver(cuda)
    made.set_current(made.retain(made.device(0)))
    yield made
    assert (cuda.faults, cuda.live["graph"]) == ([], {})


def functions(driver: Driver) -> np.ndarray:
    module = driver.module(make_cubin({kernel.symbol: SIZES for kernel in KERNELS}))
    handles = [driver.function(module, kernel.symbol) for kernel in KERNELS]
    driver.set_dynamic_shared(handles[1], 100_000)
    return np.array(handles, np.uint64)


def built(driver: Driver, made: Program, handles: np.ndarray, bases: dict[str, int]) -> int:
    return graphs.build(ExitStack(), driver, made, handles, bases, driver.stream())


@pytest.mark.parametrize("bases", [BASES, ELSEWHERE])
def test_the_driver_reads_what_the_program_says(driver: Driver, cuda: FakeCuda, bases: dict[str, int]) -> None:
    graph = cuda.live["executable"][built(driver, program(77), functions(driver), bases)]
    assert [(n.function.symbol, n.grid, n.block, n.shared) for n in graph.nodes.values()] == [
        ("first", (3, 2, 1), (128, 1, 1), 0),
        ("second", (4, 2, 1), (128, 1, 1), 100_000),
        ("third", (5, 2, 1), (128, 1, 1), 1000),
    ]
    assert [node.words for node in graph.nodes.values()] == [
        (bases["io"], bases["weights"] + 64 + 32 * i, bases["scratch"], 77) for i in range(3)
    ]
    assert graph.plain_edges == [(0, 1, b"\1\0\1\0\0\0\0\0"), (1, 2, b"\1\0\1\0\0\0\0\0")]


@given(st.sets(st.tuples(st.integers(0, 7), st.integers(0, 7)), max_size=20), st.booleans(), st.randoms())
def test_edges_are_kept_whatever_their_order(pairs: set[tuple[int, int]], programmatic: bool, random: Random) -> None:
    wanted = sorted({(min(a, b), max(a, b)) for a, b in pairs if a != b} | {(i, i + 1) for i in range(7)})
    shuffled = list(wanted)
    random.shuffle(shuffled)
    cuda = FakeCuda()
    driver = Driver(cuda)
    driver.set_current(driver.retain(driver.device(0)))
    kernels = [KERNELS[0]] * 8
    handle = functions(driver)[0]
    made = program(1, kernels, shuffled, programmatic)
    graph = cuda.live["executable"][built(driver, made, np.full(8, handle, np.uint64), BASES)]
    data = b"\1\0\1\0\0\0\0\0" if programmatic else bytes(8)
    assert sorted(graph.plain_edges) == [(source, target, data) for source, target in wanted]
    assert cuda.faults == []


def test_a_refused_launch_is_named_and_leaves_no_graph(driver: Driver, cuda: FakeCuda) -> None:
    found = functions(driver)
    cuda.fail_at = len(cuda.calls) + 3  # behind the stream, the graph and its first node
    with pytest.raises(DeviceError, match=r"launch 1 \(second\): cuGraphAddNode_v2 says .*719"):
        built(driver, program(0), found, BASES)
    assert cuda.live["executable"] == {}


def test_a_program_without_blocks_or_order_is_refused() -> None:
    graphs.require(program(0))
    graphs.require(program(0, KERNELS[:1], ()))
    with pytest.raises(BundleCorrupt, match="launch 2 does not wait for launch 1; rebuild the bundle"):
        graphs.require(program(0, edges=[(0, 1)]))
    graphs.require(program(0, edges=[(0, 1), (0, 2), (1, 2)]))
    with pytest.raises(BundleCorrupt, match="launch 2 does not wait for launch 1"):  # both would write one scratch
        graphs.require(program(0, edges=[(0, 1), (0, 2)]))
    plain = program(0)
    launches = plain.launches.copy()
    launches["block"] = 0
    with pytest.raises(BundleCorrupt, match="no blocks: it is a CPU's"):
        graphs.require(type(plain)(plain.kernels, plain.regions, launches, plain.params))
