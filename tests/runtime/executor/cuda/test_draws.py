"""Draws on a fake GPU: a second launch behind the pass, what it is told, what is brought of texts, what comes back."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tandem.artifacts.io import IoLayout
from tandem.artifacts.program import Program, Region
from tandem.driver import Driver
from tandem.errors import BundleCorrupt, BundleMismatch
from tandem.keys import Kind
from tandem.runtime.executor.base import Moves, Rows, Wishes
from tandem.runtime.executor.cuda.executor import CudaExecutor
from tandem.runtime.executor.cuda.image import EntryProgram, Image, region_bytes
from tandem.runtime.executor.cuda.shelf import require_all
from tandem.wish import FRESH, WISH, Wish
from tests.fake_device import Node
from tests.runtime.executor.cuda.echo import NUM_PAGES, TABLE, Gpu, step
from tests.runtime.executor.cuda.sample import GEOMETRY, REGIONS, SIZES, TOLD, entries, image, program

DRAWING = replace(GEOMETRY, draws=True)
LAYOUT = IoLayout(DRAWING)
SEEN = len(REGIONS)
HELD = (
    *(replace(region, nbytes=LAYOUT.nbytes) if region.name == "io" else region for region in REGIONS),
    Region("seen", DRAWING.seen_bytes),
)
SAMPLE = 15
"""The number of the program that draws."""
VOCAB = DRAWING.vocab_size


class DrawingGpu(Gpu):
    """Its draw is 1,000 more than the position that a row wishes, and 100 for each fresh id."""

    layout = LAYOUT

    def echo(self, nodes: list[Node]) -> None:
        if nodes[0].words[3] != SAMPLE:
            super().echo(nodes)
            return
        io = self.io()
        self.seen.append({name: field.copy() for name, field in io.items()})
        self.numbers.append(SAMPLE)
        for output, wish in enumerate(io["wish"][: io["counts"][1]]):
            drawn = 1000 + wish[Wish.POSITION] + 100 * io["counts"][3]
            io["drawn"][output] = drawn if wish[Wish.LANE] >= 0 else -1


def moved(kind: Kind, made: Program) -> Program:
    """A program of the sample over DRAWING: first pointers at the field that `kind` is told, those of a draw at its."""
    params = made.params.copy()
    told = ("wish", "fresh", "drawn") if kind is Kind.SAMPLE else (TOLD[kind],) * 3
    params["value"][:: len(SIZES)] = [LAYOUT.fields[name].offset for name in told]
    if kind is Kind.SAMPLE:
        params["region"][1 :: len(SIZES)], params["value"][1 :: len(SIZES)] = SEEN, 0
    return replace(made, regions=HELD, params=params)


def drawing(folder: Path) -> Image:
    listed: list[EntryProgram] = [*entries(), (Kind.SAMPLE, 0, 32, program(SAMPLE))]
    remade = {id(made): moved(kind, made) for kind, *_, made in listed}
    kept = [(kind, context, rows, remade[id(made)]) for kind, context, rows, made in listed]
    return replace(image(folder, kept), geometry=DRAWING)


GPU, made_image = DrawingGpu, drawing


def two_rows(said: Sequence[Sequence[int]] = ((), ()), **more: object) -> Rows:
    """Rows of two lanes, of which the second wishes a draw at position 41."""
    rows = np.zeros((2, WISH), np.int64)
    rows[0, Wish.LANE] = -1
    rows[1, [Wish.LANE, Wish.POSITION, Wish.SEED]] = 1, 41, -5
    wishes = Wishes(rows, said, **more)  # type: ignore[arg-type]
    return Rows([4, 6], [70, 12], [0, 1], [70, 12], [71, 13], [0, 1], TABLE, wishes=lambda: wishes)


def test_a_draw_is_told_and_launched_behind_the_launch_of_the_pass(executor: CudaExecutor, gpu: DrawingGpu) -> None:
    executor.run(Kind.EXTEND, step())
    del gpu.calls[:]
    outcome = executor.run(Kind.VERIFY_CHAIN, two_rows())
    told = ["cuMemcpyHtoDAsync_v2", "cuGraphLaunch"]
    assert gpu.calls == [*told, *told, "cuMemcpyDtoHAsync_v2", "cuStreamSynchronize"] and gpu.numbers[-2:] == [
        2,
        SAMPLE,
    ]
    assert (list(outcome.drawn), outcome.argmax, outcome.gap) == ([-1, 1041], [4 + 2, 6 + 2], [17.5, 3.0])
    told = gpu.seen[-1]
    assert told["wish"][1, Wish.SEED] == -5 and told["wish"][0, Wish.LANE] == -1
    assert told["counts"][:4].tolist() == [2, 2, 0, 0] and (told["said"][:2] == -1).all()


def test_greedy_passes_bring_no_wishes(executor: CudaExecutor, gpu: DrawingGpu) -> None:
    executor.run(Kind.VERIFY_CHAIN, two_rows())
    gpu.io()["wish"][:] = -7  # as nobody would: what is not copied stays
    outcome = executor.run(Kind.EXTEND, step())
    assert outcome.drawn == () and gpu.numbers[-1] != SAMPLE and (gpu.io()["wish"] == -7).all()
    executor.commit(Moves([0], [1], [0], TABLE))
    assert (gpu.io()["wish"] == -7).all()


def test_paths_and_fresh_ids_are_those_of_the_pass(executor: CudaExecutor, gpu: DrawingGpu) -> None:
    executor.run(Kind.VERIFY_CHAIN, two_rows([[1, 2, 3], [9] * 31], fresh=[(1, 8), (0, 3)]))
    told = gpu.seen[-1]
    assert told["said"][0, :4].tolist() == [1, 2, 3, -1] and told["said"][1, 30:].tolist() == [9, -1]
    assert told["fresh"][:2].tolist() == [[1, 8], [0, 3]] and told["counts"][3] == 2
    outcome = executor.run(Kind.VERIFY_CHAIN, two_rows([[], [7]]))
    told = gpu.seen[-1]
    assert told["said"][0, 0] == -1 and told["said"][1, :2].tolist() == [7, -1]
    assert told["counts"][3] == 0 and list(outcome.drawn) == [-1, 1041]


def test_texts_are_brought_whole_to_their_lanes(executor: CudaExecutor, gpu: DrawingGpu) -> None:
    """Over what was there; the region began as poison, and other lanes keep theirs."""
    held = next(m.array for m in gpu.live["memory"].values() if m.nbytes == DRAWING.seen_bytes).view(np.int32)
    assert (held == -1).all()
    for counts in (np.arange(VOCAB, dtype=np.int32), np.full(VOCAB, 6, np.int32)):
        executor.run(Kind.VERIFY_CHAIN, two_rows(seen=[(1, counts)]))
        assert held.reshape(2, VOCAB)[1].tolist() == counts.tolist()
    assert (held.reshape(2, VOCAB)[0] == -1).all()


def test_wishes_are_asked_for_while_the_pass_runs(executor: CudaExecutor, gpu: DrawingGpu) -> None:
    rows, asked = step(), list[str]()
    rows.wishes = lambda: asked.append(gpu.calls[-1])
    outcome = executor.run(Kind.EXTEND, rows)
    assert asked == ["cuGraphLaunch"] and outcome.drawn == () and gpu.numbers[-1] != SAMPLE


def test_wishes_that_fail_leave_no_pass_under_way(executor: CudaExecutor, gpu: DrawingGpu) -> None:
    rows = step()
    rows.wishes = lambda: 1 // 0
    with pytest.raises(ZeroDivisionError):
        executor.run(Kind.EXTEND, rows)
    assert gpu.calls[-1] == "cuStreamSynchronize"
    assert list(executor.run(Kind.VERIFY_CHAIN, two_rows()).drawn) == [-1, 1041]


def test_more_than_a_pass_takes_is_refused(executor: CudaExecutor) -> None:
    with pytest.raises(ValueError):
        executor.run(Kind.VERIFY_CHAIN, two_rows(fresh=[(0, 1)] * (FRESH + 1)))


def test_wishes_of_a_bundle_that_does_not_draw_are_refused(tmp_path: Path) -> None:
    gpu = Gpu()
    made = CudaExecutor(image(tmp_path), num_pages=NUM_PAGES, driver=Driver(gpu))
    made.finish()
    with pytest.raises(BundleMismatch, match="no sample entry takes 2 rows"):
        made.run(Kind.VERIFY_CHAIN, two_rows())
    made.close()


def test_memory_counts_what_is_kept_of_texts(tmp_path: Path) -> None:
    assert region_bytes(drawing(tmp_path), 1)["seen"] == 2 * VOCAB * 4
    assert "seen" not in region_bytes(image(tmp_path), 1)


def test_a_bundle_that_draws_has_a_program_for_every_round() -> None:
    with pytest.raises(BundleMismatch, match=r"^no sample entry takes 32 rows; compile the bundle again$"):
        require_all([(kind, 0, 128, program(0)) for kind in DRAWING.kinds if kind is not Kind.SAMPLE], DRAWING)
    require_all([(kind, 0, 128, program(0)) for kind in DRAWING.kinds], DRAWING)


@pytest.mark.parametrize(
    ("kind", "other", "why"),
    [
        (Kind.EXTEND, Kind.SAMPLE, "takes wishes, as no extend does"),
        (Kind.COMMIT, Kind.SAMPLE, "takes wishes, as no commit does"),
        (Kind.SAMPLE, Kind.EXTEND, "takes weights, as no sample does"),
        (Kind.SAMPLE, Kind.COMMIT, "takes weights, as no sample does"),
    ],
)
def test_an_entry_that_names_another_kinds_program_is_refused(
    kind: Kind, other: Kind, why: str, gpu: DrawingGpu, tmp_path: Path
) -> None:
    sound = drawing(tmp_path)
    stray = next(made for k, _, _, made in sound.programs if k is other)
    swapped = [(k, context, rows, stray if k is kind else made) for k, context, rows, made in sound.programs]
    with pytest.raises(BundleCorrupt, match=why):
        CudaExecutor(replace(sound, programs=swapped), num_pages=NUM_PAGES, driver=Driver(gpu))
