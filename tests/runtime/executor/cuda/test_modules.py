"""Cubins: each loaded once, held against what programs say, refused in words."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tandem.artifacts.program import Kernel
from tandem.errors import BundleCorrupt, BundleMismatch, DeviceError
from tandem.runtime.executor.cuda.modules import Modules, architecture, is_cubin
from tests.fake_device import make_cubin
from tests.fake_driver import INVALID_IMAGE, FakeCuda, driver_on
from tests.runtime.executor.cuda.sample import CUBINS, FIRST, KERNELS, SIZES, program

Open = Callable[..., Modules]


@pytest.fixture
def cuda() -> FakeCuda:
    return FakeCuda()


@pytest.fixture
def modules(cuda: FakeCuda) -> Iterator[Open]:
    made: list[Modules] = []
    with driver_on(cuda) as driver:

        def opened(*kernels: Kernel, cubins: dict[str, bytes] | None = None) -> Modules:
            programs = [program(0, [kernel], ()) for kernel in kernels]
            made.append(Modules(driver, (cubins or CUBINS).__getitem__, programs, cuda.capability))
            return made[-1]

        yield opened
        for each in made:
            each.close()


def test_each_cubin_is_loaded_once(modules: Open, cuda: FakeCuda) -> None:
    held = modules(*KERNELS)
    assert cuda.counts["cuModuleLoadData"] == 0
    found = held.functions(program(0))
    assert [cuda.functions[int(handle)].symbol for handle in found] == ["first", "second", "third"]
    assert held.functions(program(1)).tolist() == found.tolist()
    assert (held.loads, cuda.counts["cuModuleLoadData"], cuda.counts["cuModuleGetFunction"]) == (2, 2, 3)


def test_every_kernel_asks_for_the_same_shared_memory(modules: Open, cuda: FakeCuda) -> None:
    modules(*KERNELS).functions(program(0))
    assert cuda.carveouts == {"first": 100, "second": 100, "third": 100}


def test_shared_memory_is_the_most_of_all_programs(modules: Open, cuda: FakeCuda) -> None:
    first = KERNELS[0]
    held = modules(first, replace(first, shared=60_000), replace(first, shared=50_000), KERNELS[2])
    held.functions(program(0, [first], ()))
    held.functions(program(0, [KERNELS[2]], ()))
    assert cuda.shared == {"first": 60_000}  # what stays within 48 KiB asks for nothing


def test_another_number_of_bytes_is_refused(modules: Open) -> None:
    cubins = {FIRST: make_cubin({"first": (8, 8, 4)})}
    held = modules(KERNELS[0], cubins=cubins)
    with pytest.raises(BundleCorrupt, match=rf"{FIRST}.cubin: first takes arguments of 8, 8, 4 bytes, .* 8, 8, 8, 4;"):
        held.functions(program(0, [KERNELS[0]], ()))


def test_a_kernel_that_is_not_there(modules: Open) -> None:
    with pytest.raises(BundleCorrupt, match=rf"{FIRST}.cubin: no kernel absent; rebuild the bundle"):
        modules().functions(program(0, [Kernel(FIRST, "absent", SIZES)], ()))


def test_another_capability_and_damage_are_told_apart(modules: Open) -> None:
    one = program(0, KERNELS[:1], ())
    with pytest.raises(BundleMismatch, match=r"for compute capability 10.0, this GPU has 9.0; compile the bundle"):
        modules(KERNELS[0], cubins={FIRST: make_cubin({"first": SIZES}, capability=100)}).functions(one)
    damaged = b"\0" + CUBINS[FIRST][1:]
    with pytest.raises(BundleCorrupt, match=r"no whole binary for a GPU; copy or compile the bundle again"):
        modules(KERNELS[0], cubins={FIRST: damaged}).functions(one)


def test_one_that_the_driver_cannot_read(modules: Open, cuda: FakeCuda) -> None:
    held = modules(KERNELS[0])
    cuda.fail_at, cuda.code = len(cuda.calls), INVALID_IMAGE
    with pytest.raises(BundleCorrupt, match=rf"{FIRST}.cubin: the driver cannot read it; copy or compile the bundle"):
        held.functions(program(0, KERNELS[:1], ()))


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\x7fELF",
        b".version 8.8\n.target sm_90\n.visible .entry first() { ret; }\n" + bytes(64),  # would be compiled
        CUBINS[FIRST][:18] + b"\x3e\0" + CUBINS[FIRST][20:],  # an ELF file for x86-64
        CUBINS[FIRST][:61],
    ],
)
def test_what_is_no_cubin_never_meets_the_driver(modules: Open, cuda: FakeCuda, data: bytes) -> None:
    with pytest.raises(BundleCorrupt, match=rf"{FIRST}.cubin: no whole binary for a GPU"):
        modules(KERNELS[0], cubins={FIRST: data}).functions(program(0, KERNELS[:1], ()))
    assert cuda.counts["cuModuleLoadData"] == 0


@given(st.integers(64, 4000), st.integers(1, 60), st.integers(64, 4000), st.integers(1, 60))
def test_a_cubin_is_whole_exactly_if_its_tables_are(sections: int, count: int, programs: int, parts: int) -> None:
    """A section's header has 64 bytes, a segment's 56: System V ABI, "ELF-64 Object File Format"."""
    data = bytearray(make_cubin({}))
    data[32:48] = programs.to_bytes(8, "little") + sections.to_bytes(8, "little")
    for place, value in ((54, 56), (56, parts), (58, 64), (60, count)):
        data[place : place + 2] = value.to_bytes(2, "little")
    end = max(programs + 56 * parts, sections + 64 * count)
    assert is_cubin(bytes(data).ljust(end, b"\0"))
    assert not is_cubin(bytes(data).ljust(end, b"\0")[: end - 1])


@pytest.mark.parametrize("call", ["cuModuleLoadData", "cuModuleGetFunction"])
def test_other_failures_are_the_drivers(modules: Open, cuda: FakeCuda, call: str) -> None:
    held = modules(KERNELS[0])
    cuda.fail_at = len(cuda.calls) + ("cuModuleLoadData", "cuModuleGetFunction").index(call)
    with pytest.raises(DeviceError, match=call):
        held.functions(program(0, KERNELS[:1], ()))


def test_architecture_of_older_and_newer_headers() -> None:
    """Flags as `readelf -h` shows them: ptxas 12.9 and later write 0x6005a04, earlier ones 0x5a055a."""
    newer = make_cubin({}, capability=90)
    older = bytearray(newer)
    older[8], older[48:52] = 7, (0x5A055A).to_bytes(4, "little")
    assert (architecture(newer), architecture(bytes(older))) == (90, 90)
