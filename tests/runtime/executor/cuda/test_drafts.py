"""A drafter's passes on a fake GPU: what they are told, the one small copy back, what is refused, how much memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tandem.artifacts.io import DraftGeometry, Geometry, IoLayout
from tandem.artifacts.program import Program, Region
from tandem.driver import Driver
from tandem.errors import BundleCorrupt, BundleMismatch, UsageError
from tandem.keys import DRAFTER_KINDS, Kind
from tandem.runtime.executor.base import DraftRows, Entry, Rows
from tandem.runtime.executor.cuda.executor import CudaExecutor
from tandem.runtime.executor.cuda.image import CODE_BYTES, EntryProgram, Image, region_bytes
from tandem.runtime.executor.cuda.shelf import require_all
from tandem.runtime.gpu import open_image
from tandem.runtime.rows import DraftSpan, draft_rows
from tests.fake_device import Node
from tests.runtime.executor.cuda.echo import NUM_PAGES, TABLE, Gpu, step
from tests.runtime.executor.cuda.sample import (
    GEOMETRY,
    IO,
    REGIONS,
    SCRATCH_BYTES,
    SIZES,
    TOLD,
    WEIGHT_BYTES,
    entries,
    image,
    program,
)

FACTS = DraftGeometry(tap_rows=160, tap_width=12, page_bytes=64 * (2 * 8 + 2 * 12), kv_planes=((2, 8), (2, 12)), top=3)
DRAFTING = replace(GEOMETRY, drafter=FACTS)
LAYOUT = IoLayout(DRAFTING)
TAPS, DRAFT_KV = len(REGIONS), len(REGIONS) + 1
FIELDS = {
    Kind.EXTEND: ("counts", "tap_out", "argmax"),
    Kind.VERIFY_CHAIN: ("counts", "tap_out", "argmax"),
    Kind.VERIFY_TREE: ("ancestor", "tap_out", "argmax"),
    Kind.COMMIT: (TOLD[Kind.COMMIT],) * 3,
    Kind.DRAFT: ("tap", "tap_out", "draft_token"),
    Kind.SYNC: ("tap", "token", "slot"),
    Kind.NEXT: ("tap", "tap_out", "draft_token", "chain_token"),
}
FIRST = 15
"""The number of the first program of a drafter."""
OWN = [(Kind.DRAFT, bound, rows) for bound in (1024, 3000) for rows in (1, 4)]
OWN += [(Kind.DRAFT, 0, 128), *((Kind.SYNC, 0, rows) for rows in (4, 128))]


class DraftingGpu(Gpu):
    """Its guesses behind a row are its token and those after it, by logits that say which tap and position it read."""

    layout = LAYOUT

    def echo(self, nodes: list[Node]) -> None:
        if nodes[0].words[3] < FIRST:
            super().echo(nodes)
            return
        io = self.io()
        self.seen.append({name: field.copy() for name, field in io.items()})
        self.numbers.append(nodes[0].words[3])
        for output, row in enumerate(io["output_row"][: io["counts"][1]]):
            io["draft_token"][output] = io["token"][row] + np.arange(3)
            io["draft_logit"][output] = io["tap"][row], io["position"][row] / 4, -1.5
            io["draft_lse"][output] = io["tap_out"][row]
            io["logits"][output] = io["token"][row] + 0.5


def moved(kind: Kind, made: Program, geometry: Geometry = DRAFTING) -> Program:
    """A program of the sample over `geometry`: first pointers at the fields that `kind` is told."""
    params, layout = made.params.copy(), IoLayout(geometry)
    places = [layout.fields[name].offset for name in FIELDS[kind]]
    params["value"][:: len(SIZES)] = places[:3]
    if kind is Kind.NEXT:  # none of what it knows lies in the weights
        params["region"][1 :: len(SIZES)] = IO
        params["value"][1 :: len(SIZES)], params["extent"][1 :: len(SIZES)] = places[3], 64
    if kind in DRAFTER_KINDS:
        params["region"][1 :: len(SIZES)] = TAPS, DRAFT_KV, DRAFT_KV
        params["value"][1 :: len(SIZES)] = 0
        params["extent"][1 :: len(SIZES)] = 64
    held = [replace(region, nbytes=layout.nbytes) if region.name == "io" else region for region in REGIONS]
    own = Region("taps", FACTS.tap_bytes), Region("draft_kv", FACTS.page_bytes)
    return replace(made, regions=(*held, *own), params=params)


def drafting(folder: Path, geometry: Geometry = DRAFTING, own: Sequence[Entry] = OWN) -> Image:
    listed: list[EntryProgram] = [*entries(), *((*entry, program(FIRST + i)) for i, entry in enumerate(own))]
    remade = {id(made): moved(kind, made, geometry) for kind, *_, made in listed}
    kept = [(kind, context, rows, remade[id(made)]) for kind, context, rows, made in listed]
    return replace(image(folder, kept), geometry=geometry)


GPU, made_image = DraftingGpu, drafting


def two_lanes() -> DraftRows:
    """Two rows of one lane and one of another; guesses behind the last of each."""
    spans = [DraftSpan(0, 70, [5, 6], [31, 32], 2), DraftSpan(1, 12, [9], [40], -1)]
    return draft_rows(Kind.DRAFT, spans, TABLE)


def test_a_draft_is_one_copy_each_way_and_one_launch(executor: CudaExecutor, gpu: DraftingGpu) -> None:
    executor.run(Kind.EXTEND, step())
    del gpu.calls[:]
    outcome = executor.draft(Kind.DRAFT, two_lanes())
    assert gpu.calls == ["cuMemcpyHtoDAsync_v2", "cuGraphLaunch", "cuMemcpyDtoHAsync_v2", "cuStreamSynchronize"]
    assert outcome.token.tolist() == [[6, 7, 8], [9, 10, 11]] and outcome.ms > 0
    assert outcome.logit.tolist() == [[32.0, 71 / 4, -1.5], [40.0, 3.0, -1.5]] and outcome.lse.tolist() == [2.0, -1.0]
    kept = outcome.token.copy()
    executor.draft(Kind.DRAFT, draft_rows(Kind.DRAFT, [DraftSpan(0, 3, [1], [0])], TABLE))
    assert (outcome.token == kept).all()  # copies


def test_the_inbox_is_what_the_pass_says(executor: CudaExecutor, gpu: DraftingGpu) -> None:
    executor.draft(Kind.DRAFT, two_lanes())
    told = gpu.seen[-1]
    assert told["counts"][:4].tolist() == [3, 2, 0, 0] and told["output_row"][:2].tolist() == [1, 2]
    wanted = {"token": [5, 6, 9], "position": [70, 71, 12], "lane": [0, 0, 1], "slot": [70, 71, 12]}
    wanted |= {"prefix": [71, 72, 13], "tap": [31, 32, 40], "tap_out": [-1, 2, -1]}
    assert {name: told[name][:3].tolist() for name in wanted} == wanted
    assert told["block_table"][:2, :2].tolist() == TABLE.tolist()


def test_a_sync_brings_nothing_back(executor: CudaExecutor, gpu: DraftingGpu) -> None:
    executor.draft(Kind.DRAFT, two_lanes())
    del gpu.calls[:]
    outcome = executor.draft(Kind.SYNC, draft_rows(Kind.SYNC, [DraftSpan(0, 5, [1, 2], [8, 9])], TABLE))
    assert gpu.calls == ["cuMemcpyHtoDAsync_v2", "cuGraphLaunch", "cuStreamSynchronize"]
    assert outcome.token.shape == (0, 3) and outcome.ms > 0
    assert gpu.seen[-1]["counts"][:2].tolist() == [2, 0] and gpu.seen[-1]["tap_out"][:2].tolist() == [-1, -1]


def test_rows_and_length_choose_the_program(executor: CudaExecutor, gpu: DraftingGpu) -> None:
    def rows(kind: Kind, count: int, first: int) -> DraftRows:
        return draft_rows(kind, [DraftSpan(0, first, [1] * count, range(count))], TABLE)

    for kind, count, first in (
        *((Kind.DRAFT, 1, 1023), (Kind.DRAFT, 1, 1024), (Kind.DRAFT, 3, 1021), (Kind.DRAFT, 3, 1022)),
        *((Kind.DRAFT, 5, 5), (Kind.SYNC, 1, 2500), (Kind.SYNC, 5, 0)),
    ):
        executor.draft(kind, rows(kind, count, first))
    assert [number - FIRST for number in gpu.numbers] == [0, 2, 1, 3, 4, 5, 6]


def test_passes_of_the_model_say_where_taps_go(executor: CudaExecutor, gpu: DraftingGpu) -> None:
    rows = Rows([4, 6], [70, 71], [0, 0], [70, 71], [71, 72], [0, 1], TABLE, tap_out=[-1, 33])
    executor.run(Kind.VERIFY_CHAIN, rows)
    assert gpu.seen[-1]["tap_out"][:2].tolist() == [-1, 33]
    executor.run(Kind.VERIFY_CHAIN, replace(rows, tap_out=()))
    assert gpu.seen[-1]["tap_out"][:2].tolist() == [-1, -1]


def test_logits_are_those_of_the_last_pass(executor: CudaExecutor) -> None:
    executor.run(Kind.EXTEND, step(token=7))
    assert executor.logits(0)[0] == 7.0
    executor.draft(Kind.DRAFT, two_lanes())
    assert executor.logits(1)[0] == 9.5


def test_nothing_is_made_once_it_serves(executor: CudaExecutor, gpu: DraftingGpu) -> None:
    assert executor.ready and executor.loaded.graph_builds == FIRST + len(OWN)
    gpu.sealed = True
    for kind, context, rows in OWN:
        start = max(0, (context or 2000) - rows)
        executor.draft(kind, draft_rows(kind, [DraftSpan(0, start, [1] * rows, range(rows))], TABLE))
    assert gpu.faults == []


def test_what_no_drafter_takes_is_refused(executor: CudaExecutor, gpu: DraftingGpu, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="this bundle has no extend"):
        executor.draft(Kind.EXTEND, two_lanes())
    with pytest.raises(ValueError, match="3 rows of a drafter with 2 taps"):
        executor.draft(Kind.DRAFT, replace(two_lanes(), tap=[1, 2]))
    with pytest.raises(BundleMismatch, match="no sync entry takes 129 rows, the largest takes 128"):
        executor.draft(Kind.SYNC, draft_rows(Kind.SYNC, [DraftSpan(0, 0, [1] * 129, range(129))], TABLE))
    plain = CudaExecutor(image(tmp_path), num_pages=NUM_PAGES, driver=Driver(Gpu()))
    plain.finish()
    with pytest.raises(UsageError, match="this bundle has no sync: it holds no drafter that is a model"):
        plain.draft(Kind.SYNC, two_lanes())
    plain.close()


def test_memory_counts_the_ring_and_the_drafters_own_pages(tmp_path: Path) -> None:
    sizes = region_bytes(drafting(tmp_path), 9)
    assert (sizes["taps"], sizes["draft_kv"]) == (4 * 160 * 12, 9 * FACTS.page_bytes)
    assert not {"taps", "draft_kv"} & region_bytes(image(tmp_path), 9).keys()


def test_pages_are_counted_with_the_drafters_share_of_them(tmp_path: Path) -> None:
    """Room for five pages of both, where seven of the model's alone would fit."""
    made, pool = drafting(tmp_path), GEOMETRY.page_bytes + FACTS.page_bytes
    fixed = WEIGHT_BYTES + LAYOUT.nbytes + SCRATCH_BYTES + FACTS.tap_bytes + CODE_BYTES
    gpu = DraftingGpu(total=fixed + 5 * pool + pool // 2)
    executor = open_image(made, pages=(2, 20), utilization=1.0, driver=Driver(gpu))
    assert executor.num_pages == 5
    executor.close()
    assert (gpu.faults, gpu.left()) == ([], {})


def test_everything_of_it_is_poisoned(executor: CudaExecutor, gpu: DraftingGpu) -> None:
    for nbytes in (FACTS.tap_bytes, NUM_PAGES * FACTS.page_bytes):
        assert set(gpu.region(nbytes)) == {0xFF}


def test_a_bundle_with_a_drafter_has_a_program_for_every_pass_of_it() -> None:
    whole = [(kind, 0, 128, program(0)) for kind in DRAFTING.kinds]
    require_all(whole, DRAFTING)
    for kind in DRAFTER_KINDS:
        with pytest.raises(BundleMismatch, match=rf"^no {kind} entry takes 128 rows; compile the bundle again$"):
            require_all([entry if entry[0] is not kind else (kind, 0, 64, program(0)) for entry in whole], DRAFTING)
    short = [entry if entry[0] is not Kind.DRAFT else (Kind.DRAFT, 2048, 128, program(0)) for entry in whole]
    with pytest.raises(BundleMismatch, match="no draft entry takes 128 rows at 3000 tokens, the longest ends at 2048"):
        require_all(short, DRAFTING)


@pytest.mark.parametrize(
    ("kind", "other", "why"),
    [
        (Kind.EXTEND, Kind.DRAFT, "takes taps to read, as no extend does"),
        (Kind.DRAFT, Kind.SYNC, "takes no taps to write, as every draft does"),
        (Kind.SYNC, Kind.DRAFT, "takes taps to write, as no sync does"),
        (Kind.DRAFT, Kind.EXTEND, "takes no taps to read, as every draft does"),
    ],
)
def test_an_entry_that_names_another_kinds_program_is_refused(
    kind: Kind, other: Kind, why: str, gpu: DraftingGpu, tmp_path: Path
) -> None:
    sound = drafting(tmp_path)
    stray = next(made for k, _, _, made in sound.programs if k is other)
    swapped = [(k, context, rows, stray if k is kind else made) for k, context, rows, made in sound.programs]
    with pytest.raises(BundleCorrupt, match=why):
        CudaExecutor(replace(sound, programs=swapped), num_pages=NUM_PAGES, driver=Driver(gpu))
