"""The graded host check: each difference leads to its grade and is named with wanted and found."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tandem.artifacts.fit import Grade, grade
from tandem.artifacts.manifest import Host, PriceFacts, Validity
from tandem.device import ISA_FLAGS, Machine
from tandem.errors import BundleMismatch

GIB = 1 << 30
V3 = frozenset(ISA_FLAGS["x86-64-v3"])
V4 = frozenset(ISA_FLAGS["x86-64-v4"])
BF16 = frozenset(ISA_FLAGS["x86-64-v4-bf16"])
MACHINE = Machine("x86-64", "x86-64-v3", V3, "linux-glibc", "amd-epyc", 8, 64 * GIB)
HOST = Host(
    validity=Validity(arch="x86-64", isa_level="x86-64-v3", flags=("avx2", "fma"), abi="linux-glibc"),
    price=PriceFacts(product="amd-epyc", cores=8, memory=64 * GIB),
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


def test_a_level_from_the_future_is_refused() -> None:
    future = Host(
        validity=Validity(arch="x86-64", isa_level="x86-64-v9", flags=(), abi="linux-glibc"), price=HOST.price
    )
    assert [r.field for r in grade(future, MACHINE).reasons] == ["host.validity.isa_level"]


@given(st.sets(st.sampled_from(sorted(V4))))
def test_no_machine_without_a_needed_flag_is_accepted(flags: set[str]) -> None:
    fit = grade(HOST, replace(MACHINE, flags=frozenset(flags)))
    assert (fit.grade is Grade.REFUSED) == bool(V3 - flags)
