"""A block drafter's passes on a fake GPU: lattices come back with the guesses, in the one small copy."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tandem.artifacts.io import BlockGeometry, DraftGeometry, IoLayout
from tandem.artifacts.program import Program, Region
from tandem.driver import Driver
from tandem.errors import BundleCorrupt, BundleMismatch
from tandem.keys import Kind
from tandem.runtime.executor.base import DraftRows
from tandem.runtime.executor.cuda.executor import CudaExecutor
from tandem.runtime.executor.cuda.image import EntryProgram, Image
from tandem.runtime.executor.cuda.shelf import require_all
from tandem.runtime.rows import DraftSpan, block_rows, draft_rows
from tests.fake_device import Node
from tests.runtime.executor.cuda.echo import NUM_PAGES, TABLE, Gpu
from tests.runtime.executor.cuda.sample import GEOMETRY, REGIONS, SIZES, entries, image, program
from tests.runtime.executor.cuda.test_drafts import FIELDS as CHAINED

BLOCK = BlockGeometry(rows=3, mask_token=9, context_length=3000)
FACTS = DraftGeometry(
    tap_rows=160, tap_width=24, page_bytes=64 * (2 * 8 + 2 * 12), kv_planes=((2, 8), (2, 12)), top=2, block=BLOCK
)
DRAFTING = replace(GEOMETRY, drafter=FACTS)
LAYOUT = IoLayout(DRAFTING)
HELD = (
    *(replace(region, nbytes=LAYOUT.nbytes) if region.name == "io" else region for region in REGIONS),
    Region("taps", FACTS.tap_bytes),
    Region("draft_kv", FACTS.page_bytes),
)
FIELDS = CHAINED | {Kind.DRAFT: ("prefix", "draft_walk", "draft_token")}
FIRST = 15
"""The number of the first program of a drafter."""
OWN = [*((Kind.DRAFT, 0, 3 * lanes) for lanes in (1, 2)), *((Kind.SYNC, 0, rows) for rows in (4, 128))]


class BlockGpu(Gpu):
    """Its guesses of a slot are its position and the one after, scores and walk say which slot of the pass it is."""

    layout = LAYOUT

    def echo(self, nodes: list[Node]) -> None:
        if nodes[0].words[3] < FIRST:
            super().echo(nodes)
            return
        io = self.io()
        self.seen.append({name: field.copy() for name, field in io.items()})
        self.numbers.append(nodes[0].words[3])
        for output, row in enumerate(io["output_row"][: io["counts"][1]]):
            io["draft_token"][output] = io["position"][row] + np.arange(2)
            io["draft_logit"][output], io["draft_lse"][output] = (1.5, 0.5), io["prefix"][row]
            io["draft_score"][output] = output + np.arange(4).reshape(2, 2) / 8
            io["draft_walk"][output] = output % 2


def moved(kind: Kind, made: Program) -> Program:
    """A program of the sample over DRAFTING: first pointers at the fields that `kind` is told."""
    params = made.params.copy()
    params["value"][:: len(SIZES)] = [LAYOUT.fields[name].offset for name in FIELDS[kind]]
    if kind in (Kind.DRAFT, Kind.SYNC):
        held = [region.name for region in HELD]
        params["region"][1 :: len(SIZES)] = [held.index("draft_kv")] * 3
        params["value"][1 :: len(SIZES)], params["extent"][1 :: len(SIZES)] = 0, 64
    return replace(made, regions=HELD, params=params)


def drafting(folder: Path) -> Image:
    listed: list[EntryProgram] = [*entries(), *((*entry, program(FIRST + i)) for i, entry in enumerate(OWN))]
    remade = {id(made): moved(kind, made) for kind, *_, made in listed}
    kept = [(kind, context, rows, remade[id(made)]) for kind, context, rows, made in listed]
    return replace(image(folder, kept), geometry=DRAFTING)


GPU, made_image = BlockGpu, drafting


def blocks() -> DraftRows:
    return block_rows([1, 0], [70, 2500], [5, 6], BLOCK, TABLE)


def test_a_draft_is_one_copy_each_way_and_one_launch(executor: CudaExecutor, gpu: BlockGpu) -> None:
    executor.draft(Kind.DRAFT, blocks())
    del gpu.calls[:]
    outcome = executor.draft(Kind.DRAFT, blocks())
    assert gpu.calls == ["cuMemcpyHtoDAsync_v2", "cuGraphLaunch", "cuMemcpyDtoHAsync_v2", "cuStreamSynchronize"]
    assert outcome.token.tolist() == [[71, 72], [72, 73], [2501, 2502], [2502, 2503]]
    assert outcome.logit.tolist() == [[1.5, 0.5]] * 4 and outcome.lse.tolist() == [70.0, 70.0, 2500.0, 2500.0]
    assert outcome.score is not None and outcome.walk is not None and outcome.walk.tolist() == [0, 1, 0, 1]
    assert outcome.score.tolist() == [[[o, o + 0.125], [o + 0.25, o + 0.375]] for o in range(4)]
    executor.draft(Kind.DRAFT, block_rows([0], [3], [1], BLOCK, TABLE))
    assert outcome.walk.tolist() == [0, 1, 0, 1] and outcome.score[3, 0, 0] == 3  # copies


def test_the_inbox_is_what_the_pass_says(executor: CudaExecutor, gpu: BlockGpu) -> None:
    executor.draft(Kind.DRAFT, blocks())
    told = gpu.seen[-1]
    assert told["counts"][:2].tolist() == [6, 4] and told["output_row"][:4].tolist() == [1, 2, 4, 5]
    wanted = {"token": [5, 9, 9, 6, 9, 9], "position": [70, 71, 72, 2500, 2501, 2502], "lane": [1, 1, 1, 0, 0, 0]}
    wanted |= {"prefix": [70] * 3 + [2500] * 3, "slot": wanted["position"], "tap": [-1] * 6}
    assert {name: told[name][:6].tolist() for name in wanted} == wanted


def test_lanes_alone_choose_the_program(executor: CudaExecutor, gpu: BlockGpu) -> None:
    for lanes, start in (([0], 3), ([0], 2990), ([0, 1], 5)):
        executor.draft(Kind.DRAFT, block_rows(lanes, [start] * len(lanes), [1] * len(lanes), BLOCK, TABLE))
    for rows in (4, 5):
        executor.draft(Kind.SYNC, draft_rows(Kind.SYNC, [DraftSpan(0, 0, [1] * rows, range(rows))], TABLE))
    assert [number - FIRST for number in gpu.numbers] == [0, 0, 1, 2, 3]


def test_more_blocks_than_there_is_room_for_are_refused(executor: CudaExecutor) -> None:
    with pytest.raises(BundleMismatch, match="no draft entry takes 9 rows, the largest takes 6"):
        executor.draft(Kind.DRAFT, block_rows([0, 1, 0], [3, 5, 7], [1, 2, 3], BLOCK, TABLE))


def test_a_bundle_has_a_draft_of_a_block_of_every_lane() -> None:
    others = [(kind, 0, 128, program(0)) for kind in DRAFTING.kinds if kind is not Kind.DRAFT]
    require_all([*others, (Kind.DRAFT, 0, 6, program(0))], DRAFTING)
    with pytest.raises(BundleMismatch, match="no draft entry takes 6 rows; compile the bundle again"):
        require_all([*others, (Kind.DRAFT, 0, 3, program(0))], DRAFTING)


def test_a_draft_without_a_walk_is_refused(gpu: BlockGpu, tmp_path: Path) -> None:
    sound = drafting(tmp_path)
    sync = next(made for kind, *_, made in sound.programs if kind is Kind.SYNC)
    swapped = [(k, c, rows, sync if k is Kind.DRAFT else made) for k, c, rows, made in sound.programs]
    with pytest.raises(BundleCorrupt, match="takes taps to read, as no draft does"):
        CudaExecutor(replace(sound, programs=swapped), num_pages=NUM_PAGES, driver=Driver(gpu))
