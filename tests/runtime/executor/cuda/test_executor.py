"""The CUDA executor on a fake GPU: what it calls and when, every byte of a pass, and nothing left behind."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tandem.artifacts.program import Region
from tandem.driver import Driver
from tandem.errors import BundleCorrupt, BundleMismatch, DeviceError, TandemError
from tandem.keys import Kind
from tandem.runtime.executor.base import Moves, Rows
from tandem.runtime.executor.cuda import weights as weights_module
from tandem.runtime.executor.cuda.executor import CudaExecutor
from tandem.runtime.executor.cuda.image import Image
from tests.fake_device import Node, make_cubin
from tests.fake_driver import FakeCuda
from tests.runtime.executor.cuda.sample import CUBINS, FIRST, GEOMETRY, LAYOUT, SECOND, SIZES, image, program, weights

NUM_PAGES = 5
TABLE = np.array([[3, 1], [4, 0]], np.int32)
IN_A_PASS = ["cuMemcpyHtoDAsync_v2", "cuGraphLaunch", "cuMemcpyDtoHAsync_v2", "cuStreamSynchronize"]


class Gpu(FakeCuda):
    """Its programs echo: argmax is the token of the output's row plus their number, gap the position, logits both."""

    def __init__(self, **options: int) -> None:
        super().__init__(**options, run=self.echo)  # type: ignore[arg-type]
        self.seen: list[dict[str, np.ndarray]] = []
        self.numbers: list[int] = []

    def io(self) -> dict[str, np.ndarray]:
        """Fields of the io region as they lie on the device."""
        memory = next(m for m in self.live["memory"].values() if m.nbytes == LAYOUT.nbytes)
        return LAYOUT.views(memory.array)

    def region(self, nbytes: int) -> np.ndarray:
        return next(m.array for m in self.live["memory"].values() if m.nbytes == nbytes)

    def echo(self, nodes: list[Node]) -> None:
        io = self.io()
        self.seen.append({name: field.copy() for name, field in io.items()})
        self.numbers.append(nodes[0].words[3])
        for output, row in enumerate(io["output_row"][: io["counts"][1]]):
            io["argmax"][output] = io["token"][row] + nodes[0].words[3]
            io["gap"][output] = io["position"][row] / 4
            io["logits"][output] = io["token"][row] + np.arange(GEOMETRY.vocab_size, dtype=np.float32)


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(weights_module, "CHUNK", 30_000)


@pytest.fixture
def gpu() -> Iterator[Gpu]:
    made = Gpu()
    yield made
    assert (made.faults, made.left()) == ([], {})


@pytest.fixture
def executor(gpu: Gpu, tmp_path: Path) -> Iterator[CudaExecutor]:
    made = CudaExecutor(image(tmp_path), num_pages=NUM_PAGES, driver=Driver(gpu))
    made.finish()
    yield made
    made.close()


def step(token: int = 7, position: int = 70, table: np.ndarray = TABLE) -> Rows:
    return Rows([token], [position], [0], [position], [position + 1], [0], table)


def test_regions_hold_weights_and_zeros(executor: CudaExecutor, gpu: Gpu) -> None:
    assert gpu.region(len(weights())).tobytes() == weights()
    assert not gpu.region(NUM_PAGES * GEOMETRY.page_bytes).any()
    assert not gpu.io()["logits"].any()
    assert executor.loaded.region_bytes["weights"] == len(weights())


def test_poison_fills_scratch_and_kv_alone(gpu: Gpu, tmp_path: Path) -> None:
    made = CudaExecutor(image(tmp_path), num_pages=NUM_PAGES, poison=True, driver=Driver(gpu))
    for nbytes in (NUM_PAGES * GEOMETRY.page_bytes, 4096):
        assert set(gpu.region(nbytes)) == {0xFF}
    assert not gpu.region(LAYOUT.nbytes).any()
    made.close()


def test_a_pass_is_one_copy_each_way_and_one_launch(executor: CudaExecutor, gpu: Gpu) -> None:
    executor.run(Kind.EXTEND, step())
    del gpu.calls[:]
    outcome = executor.run(Kind.EXTEND, step(token=9, position=71))
    assert gpu.calls == IN_A_PASS
    assert (outcome.argmax, outcome.gap) == ([9], [71 / 4])
    assert outcome.ms > 0


def test_the_inbox_is_what_the_pass_says(executor: CudaExecutor, gpu: Gpu) -> None:
    rows = Rows(
        token=[5, 6, 8],
        position=[70, 71, 12],
        lane=[0, 0, 1],
        slot=[70, 72, 12],
        prefix=[70, 70, 12],
        output_row=[0, 2],
        block_table=TABLE,
        ancestor=[[70], [70, 72], [12]],
    )
    outcome = executor.run(Kind.VERIFY_TREE, rows)
    assert (outcome.argmax, outcome.gap) == ([5 + 3, 8 + 3], [17.5, 3.0])
    told = gpu.seen[-1]
    wanted = {name: np.zeros_like(field) for name, field in told.items()}
    wanted["counts"][:3] = 3, 2, 0
    for name in ("token", "position", "lane", "slot", "prefix", "output_row"):
        values = getattr(rows, name)
        wanted[name][: len(values)] = values
    for row, line in enumerate(rows.ancestor or ()):
        wanted["ancestor"][row, : len(line)] = line
    wanted["block_table"][:2, :2] = TABLE
    assert {name: field.tobytes() for name, field in told.items()} == {
        name: field.tobytes() for name, field in wanted.items()
    }


def test_a_commit_moves_and_copies_nothing_back(executor: CudaExecutor, gpu: Gpu) -> None:
    del gpu.calls[:]
    assert executor.commit(Moves([0, 1], [72, 14], [71, 13], TABLE)) > 0
    assert gpu.calls == [name for name in IN_A_PASS if name != "cuMemcpyDtoHAsync_v2"]
    told = gpu.seen[-1]
    assert told["counts"][:3].tolist() == [0, 0, 2]
    moved = [told[f"move_{name}"][:2].tolist() for name in ("lane", "source", "target")]
    assert moved == [[0, 1], [72, 14], [71, 13]]
    assert gpu.numbers == [14]


def test_tables_travel_only_when_they_are_others(executor: CudaExecutor, gpu: Gpu) -> None:
    executor.run(Kind.EXTEND, step())
    gpu.io()["block_table"][:] = -7  # as nobody would: what is not copied stays
    executor.run(Kind.EXTEND, step(position=71))
    assert (gpu.seen[-1]["block_table"] == -7).all()
    other = TABLE[::-1].copy()
    executor.run(Kind.EXTEND, step(position=72, table=other))
    assert gpu.seen[-1]["block_table"][:2, :2].tolist() == other.tolist()
    executor.commit(Moves([0], [1], [0], TABLE))
    assert gpu.seen[-1]["block_table"][:2, :2].tolist() == TABLE.tolist()


def test_rows_and_length_choose_the_program(executor: CudaExecutor, gpu: Gpu) -> None:
    def rows(count: int, first: int) -> Rows:
        places = range(first, first + count)
        return Rows([1] * count, places, [0] * count, places, [p + 1 for p in places], [count - 1], TABLE)

    for kind, count, first in (
        *((Kind.EXTEND, 1, 1023), (Kind.EXTEND, 1, 1024), (Kind.VERIFY_CHAIN, 3, 1021), (Kind.VERIFY_CHAIN, 3, 1022)),
        *((Kind.EXTEND, 33, 2000), (Kind.EXTEND, 65, 5)),
    ):
        executor.run(kind, rows(count, first))
    assert gpu.numbers == [0, 4, 2, 6, 12, 13]


def test_logits_are_copied_when_asked_for(executor: CudaExecutor, gpu: Gpu) -> None:
    rows = Rows([4, 6], [70, 71], [0, 0], [70, 71], [71, 72], [0, 1], TABLE)
    executor.run(Kind.VERIFY_CHAIN, rows)
    del gpu.calls[:]
    first, second = executor.logits(0), executor.logits(1)
    assert gpu.counts["cuMemcpyDtoHAsync_v2"] == 2
    assert first.dtype == np.float32
    assert (first.tolist(), second.tolist()) == ([4.0 + i for i in range(23)], [6.0 + i for i in range(23)])
    assert executor.logits(0) is first
    executor.run(Kind.VERIFY_CHAIN, replace(rows, token=[1, 2]))
    assert executor.logits(1)[0] == 2.0
    assert gpu.counts["cuMemHostAlloc"] == 2  # buffers serve again


def test_kv_gives_planes_in_slot_order(executor: CudaExecutor, gpu: Gpu) -> None:
    """Each element of the pool says where it lies: page, layer and plane, group, token, byte."""
    pool = gpu.region(NUM_PAGES * GEOMETRY.page_bytes)
    pool[:] = np.random.default_rng(1).integers(0, 256, pool.size)
    pages = pool.reshape(NUM_PAGES, GEOMETRY.page_bytes)
    wanted, start = bytearray(), 0
    for groups, size in GEOMETRY.kv_planes * 2:
        for slot in range(100):
            page = [3, 1][slot // 64]
            for group in range(groups):
                place = start + (group * 64 + slot % 64) * size
                wanted += pages[page, place : place + size].tobytes()
        start += groups * 64 * size
    assert executor.kv([3, 1], 100) == bytes(wanted)


def test_serving_builds_nothing_once_ready(executor: CudaExecutor, gpu: Gpu) -> None:
    assert executor.ready
    assert (executor.loaded.module_loads, executor.loaded.graph_builds) == (2, 15)
    assert executor.loaded.weights_ms > 0 and executor.loaded.modules_ms > 0 and executor.loaded.graphs_ms > 0
    gpu.sealed = True
    for kind, context, rows in executor.entries:
        if kind is Kind.COMMIT:
            executor.commit(Moves([0], [1], [0], TABLE))
        else:
            places = range(max(context - rows, 0), max(context, rows))
            executor.run(kind, Rows([1] * rows, places, [0] * rows, places, places, [0], TABLE))
    executor.logits(0)
    executor.kv([0], 5)
    assert gpu.faults == []
    assert (executor.loaded.module_loads, executor.loaded.graph_builds) == (2, 15)
    assert gpu.numbers == [number for first in (0, 4, 8) for number in (*[first] * 2, first + 1, *[first + 2] * 2,
                                                                       first + 3)] + [12, 13, 14]  # fmt: skip


def test_another_thread_may_serve_and_close(gpu: Gpu, tmp_path: Path) -> None:
    made = CudaExecutor(image(tmp_path), num_pages=NUM_PAGES, driver=Driver(gpu))
    found: list[object] = []

    def serve() -> None:
        found.append(made.run(Kind.EXTEND, step()).argmax)
        found.append(made.logits(0)[0])
        made.close()

    thread = threading.Thread(target=serve)
    thread.start()
    thread.join()
    assert found == [[7], 7.0]
    made.close()  # a second time, from here: nothing to do


def refused(gpu: Gpu, made: Image, error: type[TandemError], words: str, num_pages: int = NUM_PAGES) -> None:
    with pytest.raises(error, match=words):
        CudaExecutor(made, num_pages=num_pages, driver=Driver(gpu))
    assert gpu.counts["cuGraphLaunch"] == 0


def test_too_little_memory_is_told_before_any_is_taken(gpu: Gpu, tmp_path: Path) -> None:
    refused(gpu, image(tmp_path), BundleMismatch, "are needed: weights .* kv 9.", num_pages=2_000_000)
    assert gpu.counts["cuMemAlloc_v2"] == 0


def test_kernels_that_do_not_fit_are_refused(gpu: Gpu, tmp_path: Path) -> None:
    made = image(tmp_path)
    other = CUBINS | {SECOND: make_cubin({"second": SIZES, "third": (8, 8)})}
    refused(gpu, replace(made, cubins=other), BundleCorrupt, "third takes arguments of 8, 8 bytes")
    absent = CUBINS | {FIRST: make_cubin({"last": SIZES})}
    refused(gpu, replace(made, cubins=absent), BundleCorrupt, "no kernel first")
    foreign = {name: make_cubin({}, capability=80) for name in CUBINS}
    refused(gpu, replace(made, cubins=foreign), BundleMismatch, "for compute capability 8.0, this GPU has 9.0")


def test_programs_for_other_memory_are_refused(gpu: Gpu, tmp_path: Path) -> None:
    sound = program(0)

    def with_region(name: str, nbytes: int) -> Image:
        regions = tuple(Region(r.name, nbytes) if r.name == name else r for r in sound.regions)
        return image(tmp_path, [(Kind.EXTEND, 0, 1, replace(sound, regions=regions))])

    refused(gpu, with_region("weights", 100_001), BundleCorrupt, "wants 100001 bytes of weights, not 100000")
    refused(gpu, with_region("io", LAYOUT.nbytes - 64), BundleCorrupt, "bytes of io")
    refused(gpu, with_region("kv", GEOMETRY.page_bytes + 1), BundleCorrupt, "bytes of kv")
    state = replace(sound, regions=(*sound.regions, Region("state", 0)))
    refused(gpu, image(tmp_path, [(Kind.EXTEND, 0, 1, state)]), BundleCorrupt, "0 bytes of state")
    loose = program(0, edges=[(0, 1)])
    refused(gpu, image(tmp_path, [(Kind.EXTEND, 0, 1, loose)]), BundleCorrupt, "launch 2 waits for none")
    assert gpu.calls == ["cuInit"] * 5


def whole_life(gpu: Gpu, made: Image) -> None:
    executor = CudaExecutor(made, num_pages=NUM_PAGES, driver=Driver(gpu))
    try:
        executor.finish()
        executor.run(Kind.VERIFY_CHAIN, step())
        executor.logits(0)
        executor.commit(Moves([0], [1], [0], TABLE))
        executor.kv([3, 1], 100)
    finally:
        executor.close()


def few(tmp_path: Path) -> Image:
    """Three programs: one of the hot ones, a commit, and one made beside."""
    made = image(tmp_path)
    wanted = {0, 4, 14}
    numbers = {id(each): i for i, each in enumerate(made.distinct)}
    return replace(made, programs=[entry for entry in made.programs if numbers[id(entry[3])] in wanted])


def test_a_whole_life_leaves_nothing(gpu: Gpu, tmp_path: Path) -> None:
    whole_life(gpu, few(tmp_path))
    counts = gpu.counts
    for made, ended in (
        ("cuMemAlloc_v2", "cuMemFree_v2"),
        ("cuMemHostAlloc", "cuMemFreeHost"),
        ("cuStreamCreate", "cuStreamDestroy_v2"),
        ("cuEventCreate", "cuEventDestroy_v2"),
        ("cuModuleLoadData", "cuModuleUnload"),
        ("cuGraphCreate", "cuGraphDestroy"),
        ("cuGraphInstantiateWithFlags", "cuGraphExecDestroy"),
        ("cuDevicePrimaryCtxRetain", "cuDevicePrimaryCtxRelease_v2"),
    ):
        assert counts[made] == counts[ended] > 0
    assert gpu.calls[-1] == "cuDevicePrimaryCtxRelease_v2"


def test_whichever_call_fails_nothing_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each call of a whole life in turn; threads may order them otherwise, so a few more than there were once."""
    monkeypatch.setattr(weights_module, "READERS", 2)
    made, plain = few(tmp_path), Gpu()
    whole_life(plain, made)
    failed = 0
    for number in range(len(plain.calls) + 3):
        gpu = Gpu(fail_at=number)
        try:
            whole_life(gpu, made)
        except DeviceError as error:
            failed += 1
            assert error.code == gpu.code
        assert (number, gpu.faults, gpu.left()) == (number, [], {})
    assert failed >= len(plain.calls) - 3
