"""The graded host check: each difference leads to its grade and is named with wanted and found."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tandem.artifacts.fit import Grade, choose, grade
from tandem.artifacts.manifest import CudaPriceFacts, CudaValidity, Host, PriceFacts, Validity
from tandem.device import ISA_FLAGS, Machine
from tandem.errors import BundleMismatch
from tandem.gpu import Gpu

GIB = 1 << 30
V3 = frozenset(ISA_FLAGS["x86-64-v3"])
V4 = frozenset(ISA_FLAGS["x86-64-v4"])
BF16 = frozenset(ISA_FLAGS["x86-64-v4-bf16"])
MACHINE = Machine("x86-64", "x86-64-v3", V3, "linux-glibc", "amd-epyc", 8, 64 * GIB)
HOST = Host(
    validity=Validity(arch="x86-64", isa_level="x86-64-v3", flags=("avx2", "fma"), abi="linux-glibc", cuda=None),
    price=PriceFacts(product="amd-epyc", cores=8, memory=64 * GIB, gpu=None),
)
ARM = Machine("aarch64", "aarch64", frozenset({"fp", "asimd"}), "linux-glibc", "neoverse-n1", 8, 64 * GIB)


@pytest.mark.parametrize(
    ("machine", "wanted", "fields"),
    [
        (MACHINE, Grade.OPTIMAL, []),
        (replace(MACHINE, memory=60 * GIB), Grade.OPTIMAL, []),
        (replace(MACHINE, memory=32 * GIB), Grade.STALE_PRICES, ["host.price.memory"]),
        (replace(MACHINE, product="intel-xeon"), Grade.STALE_PRICES, ["host.price.product"]),
        (replace(MACHINE, cores=4), Grade.STALE_PRICES, ["host.price.cores"]),
        (
            replace(MACHINE, isa_level="x86-64-v4", flags=V4, cores=4),
            Grade.REBUILD_ADVISED,
            ["host.validity.isa_level", "host.price.cores"],
        ),
        (
            replace(MACHINE, isa_level="x86-64-v4-bf16", flags=BF16),
            Grade.REBUILD_ADVISED,
            ["host.validity.isa_level"],
        ),
        (replace(MACHINE, flags=V3 - {"fma"}), Grade.REFUSED, ["host.validity.flags"]),
        (replace(MACHINE, isa_level="generic", flags=frozenset()), Grade.REFUSED, ["host.validity.flags"]),
        (replace(MACHINE, abi="linux"), Grade.REFUSED, ["host.validity.abi"]),
        (ARM, Grade.REFUSED, ["host.validity.arch", "host.price.product"]),
    ],
)
def test_each_difference_has_its_grade(machine: Machine, wanted: Grade, fields: list[str]) -> None:
    fit = grade(HOST, machine)
    assert (fit.grade, [reason.field for reason in fit.reasons]) == (wanted, fields)


def test_a_refusal_names_field_wanted_and_found() -> None:
    with pytest.raises(BundleMismatch, match=r"host.validity.arch: x86-64 wanted, aarch64 found; compile"):
        grade(HOST, ARM).require()
    with pytest.raises(BundleMismatch, match=r"flags: avx2 fma wanted, none of them on amd-epyc"):
        grade(HOST, replace(MACHINE, flags=V3 - {"avx2", "fma"})).require()
    grade(HOST, replace(MACHINE, cores=1)).require()


H200 = Gpu(0, "NVIDIA H200", "nvidia-h200", "9.0", 132, 140 * GIB, "13.0", "00000000-0000-0000-0000-000000000000")
A100 = replace(H200, name="NVIDIA A100", product="nvidia-a100", capability="8.0", multiprocessors=108)
CUDA_HOST = Host(
    validity=Validity(
        arch="x86-64",
        isa_level="generic",
        flags=(),
        abi="linux-glibc",
        cuda=CudaValidity(capability="9.0", driver="12.8"),
    ),
    price=PriceFacts(
        product="amd-epyc",
        cores=8,
        memory=64 * GIB,
        gpu=CudaPriceFacts(product="nvidia-h200", multiprocessors=132, memory=140 * GIB),
    ),
)


@pytest.mark.parametrize(
    ("gpus", "wanted", "fields"),
    [
        ([H200], Grade.OPTIMAL, []),
        ([A100, H200], Grade.OPTIMAL, []),
        ([replace(H200, memory=130 * GIB)], Grade.OPTIMAL, []),
        ([replace(H200, memory=80 * GIB)], Grade.STALE_PRICES, ["memory"]),
        (
            [replace(H200, product="nvidia-h100-pcie", multiprocessors=114), H200],
            Grade.STALE_PRICES,
            ["product", "multiprocessors"],
        ),
        ([replace(H200, driver="12.8")], Grade.OPTIMAL, []),
        ([replace(H200, driver="12.10")], Grade.OPTIMAL, []),
        ([replace(H200, driver="12.4")], Grade.REFUSED, ["driver"]),
        ([replace(H200, driver="9.9")], Grade.REFUSED, ["driver"]),
        ([replace(H200, capability="10.0")], Grade.REFUSED, ["cuda"]),
        ([A100, A100], Grade.REFUSED, ["cuda"]),
        ([], Grade.REFUSED, ["cuda"]),
    ],
)
@pytest.mark.parametrize("machine", [MACHINE, replace(MACHINE, product="other", cores=1, flags=frozenset())])
def test_a_gpu_bundle_asks_for_a_gpu_and_for_no_kind_of_core(
    machine: Machine, gpus: list[Gpu], wanted: Grade, fields: list[str]
) -> None:
    fit = grade(CUDA_HOST, machine, gpus)
    assert (fit.grade, [reason.field.rpartition(".")[2] for reason in fit.reasons]) == (wanted, fields)


@pytest.mark.parametrize(("machine", "field"), [(ARM, "arch"), (replace(MACHINE, abi="linux-musl"), "abi")])
def test_a_gpu_bundle_brings_a_library_of_one_kind_of_machine(machine: Machine, field: str) -> None:
    fit = grade(CUDA_HOST, machine, [H200])
    assert fit.grade is Grade.REFUSED
    assert [reason.field for reason in fit.reasons] == [f"host.validity.{field}"]


def test_the_first_gpu_that_fits_is_taken() -> None:
    cuda = CUDA_HOST.validity.cuda
    assert cuda is not None
    later = replace(H200, index=2)
    assert choose(cuda, [A100, later, replace(H200, index=3)]) is later
    assert choose(cuda, [A100]) is None and choose(cuda, [replace(H200, driver="12.6")]) is None


@pytest.mark.parametrize(
    ("gpus", "instead", "line"),
    [
        ([], "none", "host.validity.cuda: a GPU of compute capability 9.0 wanted, none found; compile .* nvidia-smi"),
        ([], "no NVIDIA driver", "a GPU of compute capability 9.0 wanted, no NVIDIA driver found; "),
        ([A100], "none", r"a GPU of compute capability 9.0 wanted, 8.0 \(nvidia-a100\) found; "),
        (
            [replace(H200, driver="12.4")],
            "none",
            "cuda.driver: a driver that speaks CUDA 12.8 or later wanted, CUDA 12.4 found; update the NVIDIA",
        ),
    ],
)
def test_a_refused_gpu_is_said_to_be_what_it_is(gpus: list[Gpu], instead: str, line: str) -> None:
    with pytest.raises(BundleMismatch, match=rf"^not for this machine: .*{line}"):
        grade(CUDA_HOST, MACHINE, gpus, instead).require()


def test_a_level_from_the_future_is_refused() -> None:
    future = Host(
        validity=Validity(arch="x86-64", isa_level="x86-64-v9", flags=(), abi="linux-glibc", cuda=None),
        price=HOST.price,
    )
    assert [r.field for r in grade(future, MACHINE).reasons] == ["host.validity.isa_level"]


@given(st.sets(st.sampled_from(sorted(V4))))
def test_no_machine_without_a_needed_flag_is_accepted(flags: set[str]) -> None:
    fit = grade(HOST, replace(MACHINE, flags=frozenset(flags)))
    assert (fit.grade is Grade.REFUSED) == bool(V3 - flags)
