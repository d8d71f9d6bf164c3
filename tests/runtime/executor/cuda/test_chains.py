"""Chains that a device makes by itself, on a fake GPU: what is launched in one go, and what comes back."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tandem.artifacts.io import IoLayout
from tandem.driver import Driver
from tandem.errors import BundleMismatch
from tandem.keys import Kind
from tandem.runtime.executor.base import DraftRows
from tandem.runtime.executor.cuda.executor import CudaExecutor
from tandem.runtime.executor.cuda.shelf import require_all
from tandem.runtime.rows import DraftSpan, draft_rows
from tests.fake_device import Node
from tests.runtime.executor.cuda.echo import NUM_PAGES, TABLE, step
from tests.runtime.executor.cuda.sample import program
from tests.runtime.executor.cuda.test_drafts import DRAFTING, FACTS, FIRST, OWN, DraftingGpu, drafting, two_lanes

CHAINING = replace(DRAFTING, drafter=replace(FACTS, chain=3))


class ChainingGpu(DraftingGpu):
    """Its program between two drafts makes their guesses their rows, as the kernel does."""

    layout = IoLayout(CHAINING)

    def echo(self, nodes: list[Node]) -> None:
        if nodes[0].words[3] != FIRST + len(OWN):
            super().echo(nodes)
            return
        self.numbers.append(nodes[0].words[3])
        io = self.io()
        count, depth = io["counts"][1], io["counts"][4]
        for name in ("token", "logit", "lse"):
            io[f"chain_{name}"][depth, :count] = io[f"draft_{name}"][:count]
        rows = io["output_row"][:count].copy()
        for name in ("position", "lane", "tap_out"):
            io[name][:count] = io[name][rows]
        io["token"][:count], io["tap"][:count] = io["draft_token"][:count, 0], io["tap_out"][:count]
        io["position"][:count] += 1
        io["output_row"][:count] = range(count)
        io["counts"][0], io["counts"][4] = count, depth + 1


@pytest.fixture
def chaining(tmp_path: Path) -> Iterator[tuple[CudaExecutor, ChainingGpu]]:
    gpu = ChainingGpu()
    made = drafting(tmp_path, CHAINING, [*OWN, (Kind.NEXT, 0, 0)])
    executor = CudaExecutor(made, num_pages=NUM_PAGES, driver=Driver(gpu))
    executor.finish()
    yield executor, gpu
    executor.close()
    assert (gpu.faults, gpu.left()) == ([], {})


def chain_of(length: int) -> DraftRows:
    """Behind two lanes, one of which goes on to the next class."""
    spans = [DraftSpan(0, 1022, [5, 6], [31, 32], 2), DraftSpan(1, 12, [9], [40], 4)]
    rows = draft_rows(Kind.DRAFT, spans, TABLE)
    rows.chain = length
    return rows


def test_a_chain_is_launched_in_one_go_and_brought_back_by_one_copy(
    chaining: tuple[CudaExecutor, ChainingGpu],
) -> None:
    executor, gpu = chaining
    executor.run(Kind.EXTEND, step())
    del gpu.calls[:], gpu.numbers[:]
    outcome = executor.draft(Kind.DRAFT, chain_of(3))
    assert gpu.calls == [
        "cuMemcpyHtoDAsync_v2", *["cuGraphLaunch"] * 5, "cuMemcpyDtoHAsync_v2", "cuStreamSynchronize"
    ]  # fmt: skip
    between = FIRST + len(OWN)
    # Three rows of the near class, two of the far one, as soon as a row stands there.
    assert gpu.numbers == [FIRST + 1, between, FIRST + 3, between, FIRST + 3]
    assert outcome.token[:, 0].tolist() == [6, 9] and outcome.ms > 0
    assert [more.token.tolist() for more in outcome.behind] == [[[6, 7, 8], [9, 10, 11]]] * 2
    assert [more.logit[:, :2].tolist() for more in (outcome, *outcome.behind)] == [
        [[32.0, 1023 / 4], [40.0, 12 / 4]], [[2.0, 1024 / 4], [4.0, 13 / 4]], [[2.0, 1025 / 4], [4.0, 14 / 4]]
    ]  # fmt: skip
    assert [more.lse.tolist() for more in (outcome, *outcome.behind)] == [[2.0, 4.0]] * 3
    again = executor.draft(Kind.DRAFT, chain_of(2))  # it begins from the host's rows again
    assert again.logit[0, 0] == 32.0 and len(again.behind) == 1 and again.behind[0].logit[0, 0] == 2.0
    assert executor.draft(Kind.DRAFT, chain_of(1)).behind == []


def test_chains_that_cannot_be_are_refused(chaining: tuple[CudaExecutor, ChainingGpu], tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"a chain of 4 .*; 3 are made here"):
        chaining[0].draft(Kind.DRAFT, chain_of(4))
    with pytest.raises(ValueError, match=r"a chain of 2 behind taps \[-1, 2, -1\]"):
        chaining[0].draft(Kind.DRAFT, replace(two_lanes(), chain=2))
    plain = CudaExecutor(drafting(tmp_path), num_pages=NUM_PAGES, driver=Driver(DraftingGpu()))
    plain.finish()
    with pytest.raises(BundleMismatch, match="no next entry takes 2 rows"):
        plain.draft(Kind.DRAFT, chain_of(2))
    plain.close()


def test_a_bundle_that_makes_chains_has_the_program_between() -> None:
    whole = [(kind, 0, 128, program(0)) for kind in CHAINING.kinds]
    assert CHAINING.kinds == (*DRAFTING.kinds, Kind.NEXT)
    require_all(whole, CHAINING)
    with pytest.raises(BundleMismatch, match="no next entry takes 32 rows"):
        require_all(whole[:-1], CHAINING)
