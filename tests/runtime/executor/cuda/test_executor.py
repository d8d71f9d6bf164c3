"""A pass of the CUDA executor on a fake GPU: what it calls and when, every byte of it, what can be read behind it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tandem.driver import Driver
from tandem.keys import Kind
from tandem.runtime.executor.base import Moves, Rows
from tandem.runtime.executor.cuda.executor import CudaExecutor
from tests.runtime.executor.cuda.echo import NUM_PAGES, TABLE, Gpu, step
from tests.runtime.executor.cuda.sample import GEOMETRY, LAYOUT, image, weights

IN_A_PASS = ["cuMemcpyHtoDAsync_v2", "cuGraphLaunch", "cuMemcpyDtoHAsync_v2", "cuStreamSynchronize"]


@pytest.fixture
def executor(gpu: Gpu, tmp_path: Path) -> Iterator[CudaExecutor]:
    made = CudaExecutor(image(tmp_path), num_pages=NUM_PAGES, driver=Driver(gpu))
    made.finish()
    yield made
    made.close()


def test_regions_hold_weights_and_zeros(executor: CudaExecutor, gpu: Gpu) -> None:
    assert gpu.region(len(weights())).tobytes() == weights()
    assert not gpu.region(NUM_PAGES * GEOMETRY.page_bytes).any()
    assert not gpu.io()["logits"].any()
    assert executor.loaded.region_bytes["weights"] == len(weights())


def test_poison_fills_scratch_and_kv_alone(gpu: Gpu, tmp_path: Path) -> None:
    made = CudaExecutor(image(tmp_path), num_pages=NUM_PAGES, poison=True, driver=Driver(gpu))
    made.finish()
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
