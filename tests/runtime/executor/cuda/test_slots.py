"""Recurrent states on a fake GPU: slots beside KV pages, snapshots through pinned memory, what passes are told."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tandem.artifacts.io import IoLayout
from tandem.artifacts.program import Program, Region
from tandem.driver import Driver
from tandem.errors import BundleCorrupt, BundleMismatch, UsageError
from tandem.keys import Kind
from tandem.runtime.executor.base import Moves, Rows
from tandem.runtime.executor.cuda import slots
from tandem.runtime.executor.cuda.executor import CudaExecutor
from tandem.runtime.executor.cuda.image import Image, region_bytes
from tandem.runtime.executor.cuda.slots import Slots
from tandem.runtime.gpu import CODE_BYTES, open_image
from tandem.runtime.rows import Span, commit_moves, extend_rows, verify_rows
from tandem.tree import DraftTree
from tests.fake_driver import FakeCuda, driver_on
from tests.runtime.executor.cuda.echo import NUM_PAGES, TABLE, Gpu
from tests.runtime.executor.cuda.sample import GEOMETRY, REGIONS, SIZES, TOLD, entries, image

CHUNK = 1000
STATE_BYTES, FACTOR_BYTES = 3608, 20_000
HYBRID = replace(GEOMETRY, recurrent_layers=2, state_bytes=STATE_BYTES, factor_bytes=FACTOR_BYTES)
HELD = tuple(replace(region, nbytes=IoLayout(HYBRID).nbytes) if region.name == "io" else region for region in REGIONS)


class HybridGpu(Gpu):
    layout = IoLayout(HYBRID)


def hybrid(folder: Path, state_bytes: int = STATE_BYTES) -> Image:
    """The sample's programs over two recurrent layers, whose verifies and commits take factors."""
    regions = (*HELD, Region("state", state_bytes), Region("factors", FACTOR_BYTES))
    listed = [(kind, *size, recurrent(program, kind, regions)) for kind, *size, program in entries()]
    return replace(image(folder, listed), geometry=HYBRID, bundle="ab" * 32)


def recurrent(program: Program, kind: Kind, regions: tuple[Region, ...]) -> Program:
    """A program over `regions`: first pointers at the field that `kind` is told, third ones at factors if any."""
    params = program.params.copy()
    params["value"][:: len(SIZES)] = IoLayout(HYBRID).fields[TOLD[kind]].offset
    if kind is not Kind.EXTEND:
        params["region"][2] = len(regions) - 1
    return replace(program, regions=regions, params=params)


@pytest.fixture(autouse=True)
def _small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slots, "CHUNK", CHUNK)


@pytest.fixture
def gpu() -> Iterator[HybridGpu]:
    made = HybridGpu()
    yield made
    assert (made.faults, made.left()) == ([], {})


@pytest.fixture
def executor(gpu: HybridGpu, tmp_path: Path) -> Iterator[CudaExecutor]:
    made = CudaExecutor(hybrid(tmp_path), num_pages=NUM_PAGES, driver=Driver(gpu))
    made.finish()
    yield made
    made.close()


@pytest.mark.parametrize("nbytes", [4, 999, 1000, 1001, 2000, 2999, 5555])
def test_every_byte_of_a_slot_goes_out_and_comes_back(nbytes: int) -> None:
    cuda = FakeCuda()
    with driver_on(cuda) as driver, ExitStack() as stack:
        address = driver.alloc(3 * nbytes)
        stack.callback(driver.free, address)
        memory = cuda.live["memory"][address].array
        memory[:] = np.random.default_rng(nbytes).integers(0, 256, 3 * nbytes)
        before = memory.copy()
        made = Slots(stack, driver, address, nbytes)
        assert [made.read(slot).tobytes() for slot in range(3)] == [part.tobytes() for part in before.reshape(3, -1)]
        made.write(1, before[:nbytes])
        assert memory.tobytes() == b"".join(before[first : first + nbytes].tobytes() for first in (0, 0, 2 * nbytes))
        pinned = cuda.live["pinned"].values()
        assert [block.nbytes for block in pinned] == [min(nbytes, CHUNK)] * 2
    assert cuda.faults == []


def test_slots_and_factors_count_beside_pages(tmp_path: Path, gpu: HybridGpu) -> None:
    made = hybrid(tmp_path)
    sizes = region_bytes(made, 9)
    assert sizes["kv"] == 9 * GEOMETRY.page_bytes
    assert (sizes["state"], sizes["factors"]) == (GEOMETRY.max_lanes * STATE_BYTES, FACTOR_BYTES)
    fixed = sum(sizes.values()) - sizes["kv"] + CODE_BYTES
    gpu.total = fixed + 5 * GEOMETRY.page_bytes
    executor = open_image(made, pages=(2, 9), utilization=1, driver=Driver(gpu))
    assert (executor.num_pages, executor.num_slots) == (5, GEOMETRY.max_lanes)
    executor.close()


def test_poison_fills_states_and_factors(tmp_path: Path, gpu: HybridGpu) -> None:
    made = CudaExecutor(hybrid(tmp_path), num_pages=NUM_PAGES, poison=True, driver=Driver(gpu))
    made.finish()
    for nbytes in (GEOMETRY.max_lanes * STATE_BYTES, FACTOR_BYTES):
        assert set(gpu.region(nbytes)) == {0xFF}
    made.close()


def test_a_snapshot_is_a_copy_of_its_slot(executor: CudaExecutor, gpu: HybridGpu) -> None:
    states = gpu.region(GEOMETRY.max_lanes * STATE_BYTES).reshape(-1, STATE_BYTES)
    states[:] = np.random.default_rng(5).integers(0, 256, states.shape)
    first, second = states.copy()
    gpu.sealed = True
    allocated = gpu.counts["cuMemHostAlloc"]
    snapshot = executor.save(1, 70)
    assert (snapshot.bundle, snapshot.position, snapshot.nbytes) == ("ab" * 32, 70, STATE_BYTES)
    states[1] = 0
    assert (snapshot.state == second).all()
    executor.restore(0, snapshot)
    assert (states[0] == second).all() and not states[1].any() and not (first == second).all()
    assert gpu.counts["cuMemHostAlloc"] == allocated  # serving pins nothing for a snapshot


def test_a_snapshot_of_another_bundle_is_refused(executor: CudaExecutor, gpu: HybridGpu) -> None:
    snapshot = executor.save(0, 3)
    calls = len(gpu.calls)
    for other in (replace(snapshot, bundle="cd" * 32), replace(snapshot, state=snapshot.state[:-4])):
        with pytest.raises(BundleMismatch, match=r"a snapshot of \d+ bytes of bundle .*, prefill the text again"):
            executor.restore(1, other)
    assert len(gpu.calls) == calls


@pytest.mark.parametrize("slot", [-1, -GEOMETRY.max_lanes, GEOMETRY.max_lanes])
def test_a_slot_that_is_not_there_is_refused(executor: CudaExecutor, gpu: HybridGpu, slot: int) -> None:
    snapshot, calls = executor.save(1, 3), len(gpu.calls)
    for call in (lambda: executor.save(slot, 3), lambda: executor.restore(slot, snapshot)):
        calls = len(gpu.calls)
        with pytest.raises(UsageError, match=rf"no state slot {slot}; this executor has 0 to 1, ask for one of them"):
            call()
        assert len(gpu.calls) == calls


def test_a_model_without_states_saves_none(gpu: HybridGpu, tmp_path: Path) -> None:
    gpu.layout = IoLayout(GEOMETRY)
    made = CudaExecutor(image(tmp_path), num_pages=NUM_PAGES, driver=Driver(gpu))
    with pytest.raises(UsageError, match="no recurrent layers, so there is no state to save"):
        made.save(0, 1)
    made.close()


@pytest.mark.parametrize(
    ("kind", "other", "words"),
    [
        (Kind.EXTEND, Kind.VERIFY_CHAIN, "takes factors, as no extend does"),
        (Kind.EXTEND, Kind.VERIFY_TREE, "takes ancestors, as no extend does"),
        (Kind.EXTEND, Kind.COMMIT, "takes moves, as no extend does"),
        (Kind.VERIFY_CHAIN, Kind.EXTEND, "takes no factors, as every verify-chain does"),
        (Kind.VERIFY_CHAIN, Kind.VERIFY_TREE, "takes ancestors, as no verify-chain does"),
        (Kind.VERIFY_TREE, Kind.EXTEND, "takes no ancestors, as every verify-tree does"),
        (Kind.VERIFY_TREE, Kind.VERIFY_CHAIN, "takes no ancestors, as every verify-tree does"),
        (Kind.VERIFY_TREE, Kind.COMMIT, "takes moves, as no verify-tree does"),
        (Kind.COMMIT, Kind.EXTEND, "takes no moves, as every commit does"),
        (Kind.COMMIT, Kind.VERIFY_CHAIN, "takes no moves, as every commit does"),
    ],
)
def test_an_entry_that_names_another_kinds_program_is_refused(
    gpu: HybridGpu, tmp_path: Path, kind: Kind, other: Kind, words: str
) -> None:
    """One of many, the last of its kind, and no driver is asked for anything but what it is."""
    made = hybrid(tmp_path)
    programs = list(made.programs)
    place = max(i for i, entry in enumerate(programs) if entry[0] is kind)
    _, context, rows, _ = programs[place]
    programs[place] = (kind, context, rows, next(entry[3] for entry in programs if entry[0] is other))
    line = rf"^{kind} entry of class {context}, {rows} rows: its program {words}; rebuild the bundle$"
    with pytest.raises(BundleCorrupt, match=line):
        CudaExecutor(replace(made, programs=programs), num_pages=NUM_PAGES, driver=Driver(gpu))
    assert gpu.calls == ["cuInit"]


def test_passes_are_told_parents_and_slots(executor: CudaExecutor, gpu: HybridGpu) -> None:
    lanes, held = [0, 1], [1, 0]
    executor.run(Kind.EXTEND, extend_rows([Span(0, 70, [5, 6], 1), Span(1, 9, [8], 1)], TABLE, held))
    assert gpu.seen[-1]["parent"][:3].tolist() == [-1, 0, -1]
    assert gpu.seen[-1]["state_slot"].tolist() == held
    trees = [DraftTree([4, 5, 6], [-1, 0, 0], [0.5] * 3, ["test"] * 3), DraftTree.root(7)]
    executor.run(Kind.VERIFY_TREE, verify_rows(Kind.VERIFY_TREE, lanes, [72, 10], trees, TABLE, held))
    assert gpu.seen[-1]["parent"][:4].tolist() == [-1, 0, 0, -1]
    executor.commit(commit_moves(lanes, [72, 10], trees, [[0, 2], [0]], TABLE, held))
    told = gpu.seen[-1]
    moved = {name: told[f"move_{name}"][:3].tolist() for name in ("lane", "row", "source", "target")}
    assert moved == {"lane": [0, 0, 1], "row": [0, 2, 3], "source": [72, 74, 10], "target": [72, 73, 10]}
    assert told["counts"][:3].tolist() == [0, 0, 3] and told["state_slot"].tolist() == held


def test_rows_that_do_not_say_what_they_follow_are_refused(executor: CudaExecutor, gpu: HybridGpu) -> None:
    launches = gpu.counts["cuGraphLaunch"]
    with pytest.raises(ValueError, match="1 rows with 0 parents"):
        executor.run(Kind.EXTEND, Rows([7], [70], [0], [70], [71], [0], TABLE))
    with pytest.raises(ValueError, match="1 rows with 0 parents or places"):
        executor.commit(Moves([0], [1], [0], TABLE, state_slot=[0]))
    assert gpu.counts["cuGraphLaunch"] == launches


def test_programs_for_larger_slots_are_refused(tmp_path: Path, gpu: HybridGpu) -> None:
    made = hybrid(tmp_path, STATE_BYTES + 8)
    with pytest.raises(BundleCorrupt, match=f"wants {STATE_BYTES + 8} bytes of state, not {STATE_BYTES}"):
        CudaExecutor(made, num_pages=NUM_PAGES, driver=Driver(gpu))
