"""Which programs are held against captures: enough of them that every kernel is."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tandem.artifacts.program import Kernel
from tandem.compile.assembly import Buffer, Operand
from tandem.compile.cuda import check
from tandem.errors import LoweringError


@dataclass(frozen=True)
class Of:
    """What stands for a program, or for what it was lowered from."""

    name: int
    kernels: tuple[Kernel, ...]


def pair(name: int, binaries: set[int]) -> Any:
    of = Of(name, tuple(Kernel(f"{binary:064x}", "k", (8,)) for binary in sorted(binaries)))
    return of, of


@given(st.lists(st.sets(st.integers(0, 12), max_size=6), max_size=12))
def test_every_kernel_is_met(programs: list[set[int]]):
    picked = check.worth_checking([pair(i, binaries) for i, binaries in enumerate(programs)])
    found = [programs[low.name] for low, _ in picked]
    assert set().union(*found) == set().union(*programs)
    for i, kernels in enumerate(found):
        assert not kernels <= set().union(*found[:i])  # none is captured for nothing
    assert [len(kernels) for kernels in found] == sorted(map(len, found), reverse=True)


def test_equals_are_checked_once():
    pairs = [pair(0, {1, 2}), pair(1, {1, 2, 3}), pair(2, {3}), pair(3, {4})]
    assert [low.name for low, _ in check.worth_checking(pairs)] == [1, 3]


def test_arguments_are_captured_where_the_program_has_them():
    regions = {name: torch.zeros(1024, dtype=torch.uint8) for name in ("io", "scratch")}
    start = {name: region.data_ptr() for name, region in regions.items()}
    field = check._tensor(Operand("io", 64, 256, dtype="int32"), regions)
    assert field is not None and (field.data_ptr() - start["io"], field.dtype) == (64, torch.int32)
    inside = check._tensor(Operand(Buffer(512, offset=128), 32, 512, dtype="bf16"), regions)
    assert inside is not None and (inside.data_ptr() - start["scratch"], inside.dtype) == (160, torch.bfloat16)
    assert check._tensor(None, regions) is None
    with pytest.raises(LoweringError, match="offset 1024 in io of 1024 bytes"):
        check._tensor(Operand("io", 1024, 0), regions)
