"""The CUDA executor from its opening to its close on a fake GPU: refusals, threads, and failures that leave nothing."""

from __future__ import annotations

import threading
from dataclasses import replace
from pathlib import Path

import pytest

from tandem.artifacts.program import Region
from tandem.driver import Driver
from tandem.errors import BundleCorrupt, BundleMismatch, DeviceError, TandemError
from tandem.keys import Kind
from tandem.runtime.executor.base import Moves
from tandem.runtime.executor.cuda import weights
from tandem.runtime.executor.cuda.executor import CudaExecutor
from tandem.runtime.executor.cuda.image import Image
from tests.fake_calls import ENDS
from tests.fake_device import make_cubin
from tests.runtime.executor.cuda.echo import NUM_PAGES, TABLE, Gpu, step
from tests.runtime.executor.cuda.sample import CUBINS, FIRST, GEOMETRY, LAYOUT, SECOND, SIZES, image, program


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
    refused(gpu, image(tmp_path, [(Kind.EXTEND, 0, 1, loose)]), BundleCorrupt, "launch 2 does not wait for launch 1")
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
    monkeypatch.setattr(weights, "READERS", 2)
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
        else:  # readers that are done give back what they can
            assert len(gpu.calls) <= number or gpu.calls[number].endswith(ENDS)
        assert (number, gpu.faults, gpu.left()) == (number, [], {})
    assert failed >= len(plain.calls) - 3 - sum(call.endswith(ENDS) for call in plain.calls)
