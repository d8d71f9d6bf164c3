"""What a draft guessed becomes the rows of the next: every field by hand, and none beside the outputs'."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tandem.kernels.cuda.chain import chain_next_work
from tandem.kernels.cuda.table import KERNELS
from tests.kernels.cuda.interpreter import interpreted, run
from tests.kernels.cuda.ptx import Early
from tests.kernels.cuda.test_compiled import _early, _ptx

ROWS, DEPTHS = 40, 3
FIELDS = ("token", "position", "lane", "slot", "prefix", "tap", "tap_out")


@settings(max_examples=25, deadline=None)
@given(
    rows=st.lists(st.integers(0, ROWS - 1), min_size=1, max_size=8, unique=True).map(sorted),
    depth=st.integers(0, DEPTHS - 1),
    sizes=st.sampled_from([(32, 2), (8, 3), (10, 1)]),
    seed=st.integers(0, 99),
)
def test_rows_go_on_from_their_outputs(rows: list[int], depth: int, sizes: tuple[int, int], seed: int) -> None:
    (outputs, top), chance, count = sizes, np.random.default_rng(seed), len(rows)
    before = {name: chance.integers(0, 1000, ROWS).astype(np.int32) for name in FIELDS}
    before["output_row"] = np.full(outputs, 1 << 30, np.int32)
    before["output_row"][:count] = rows
    before["counts"] = np.array([ROWS, count, 0, 9, depth, 7], np.int32)
    given = {
        "draft_token": chance.integers(0, 500, (outputs, top)).astype(np.int32),
        "draft_logit": chance.standard_normal((outputs, top)).astype(np.float32),
        "draft_lse": chance.standard_normal(outputs).astype(np.float32),
    }
    kept = {name.replace("draft", "chain"): np.full((DEPTHS, *a.shape), -7, a.dtype) for name, a in given.items()}
    held = {name: torch.from_numpy(a.copy()) for name, a in (before | given | kept).items()}
    run(interpreted("chain").chain_next, chain_next_work(outputs, top), **held)
    found = {name: tensor.numpy() for name, tensor in held.items()}
    wanted = {name: a.copy() for name, a in (before | given | kept).items()}
    for output, row in enumerate(rows):
        behind, tap = before["position"][row] + 1, before["tap_out"][row]
        guess, lane = given["draft_token"][output, 0], before["lane"][row]
        made = dict(zip(FIELDS, (guess, behind, lane, behind, behind + 1, tap, tap), strict=True))
        for name, value in made.items():
            wanted[name][output] = value
        wanted["output_row"][output] = output
        for name, values in given.items():
            wanted[name.replace("draft", "chain")][depth, output] = values[output]
    wanted["counts"][[0, 4]] = count, depth + 1
    for name, values in wanted.items():
        np.testing.assert_array_equal(found[name], values, name)


@pytest.mark.parametrize(("outputs", "top"), [(32, 2), (24, 3)])
def test_one_program_of_one_warp_does_it(outputs: int, top: int) -> None:
    work = chain_next_work(outputs, top)
    assert work.grid == (1, 1, 1) and work.num_warps == 1 and dict(work.constants)["MOST"] == 32


def test_nothing_is_read_before_the_draft_has_ended_and_nothing_written_before_all_is_read() -> None:
    kernel, ids = KERNELS["chain_next"], ("counts", *FIELDS, "output_row", "draft_token", "chain_token")
    ptx = _ptx(kernel, chain_next_work(32, 2), **dict.fromkeys(ids, "i32"))
    assert _early(kernel, ptx) == Early(frozenset(), frozenset(), writes=False)
    read, written = ptx.split("bar.", 1)
    assert "st.global" not in read and "ld.global" not in written and "st.global" in written
