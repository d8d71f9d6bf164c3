"""A program that draws, behind a pass of a tiny model: its ids are those that a host draws from that pass's logits."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tandem.compile.cuda.entries import Shape
from tandem.compile.cuda.programs import Lowered, lower
from tandem.keys import Kind
from tandem.runtime.executor.base import Wishes
from tandem.runtime.penalties import PenalizedText
from tandem.runtime.request import Penalties, Sampling
from tandem.runtime.rows import step_rows
from tandem.runtime.sampling import draw
from tandem.runtime.wish_row import wish_row
from tandem.wish import WISH, Wish
from tests.compile.cuda import lowered
from tests.compile.cuda.interpreted import InterpretedExecutor


@pytest.fixture(scope="module")
def executor(tmp_path_factory: pytest.TempPathFactory) -> InterpretedExecutor:
    composer = lowered.composer(tmp_path_factory.mktemp("sample"), "llama", num_hidden_layers=1)
    return InterpretedExecutor(composer, buckets=(4,))


def test_a_pass_draws_what_the_host_would(executor: InterpretedExecutor) -> None:
    """Three lanes: one with filters, one that the host draws for, one with penalties whose counts are brought."""
    width = executor.geometry.vocab_size
    filtered = Sampling(temperature=0.9, top_k=30, top_p=0.8)
    penalties = Penalties(frequency=1.5, repetition=1.2)
    text = PenalizedText(penalties, [5, 6], ())
    text.extend([9, 9])
    whole, rows = text.seen(width), np.zeros((3, WISH), np.int64)
    rows[1, Wish.LANE] = -1
    rows[0] = wish_row(0, filtered, None, 77, width)
    rows[2] = wish_row(2, filtered, penalties, 78, width)
    rows[:, Wish.POSITION] = 40, 0, 41
    table = np.array([[0, 1], [2, 3], [4, 5]], np.int32)
    text.extend([12])
    for said in ([], [3, 4]):
        pass_rows = step_rows([0, 1, 2], [0, 0, 0], [8, 9, 10], table)
        # Its counts come whole, and one id more; with the second pass they are there.
        fresh = [(2, 12)] if not said else []
        wishes = Wishes(rows, [[], [], said], [] if said else [(2, whole)], fresh)
        pass_rows.wishes = lambda wishes=wishes: wishes
        outcome = executor.run(Kind.EXTEND, pass_rows)
        changed = text.applied(executor.logits(2), said)
        wanted = [draw(executor.logits(0), filtered, 77, 40), -1, draw(changed, filtered, 78, 41)]
        assert list(outcome.drawn) == wanted
    assert executor.run(Kind.EXTEND, step_rows([0], [0], [8], table)).drawn == ()


def test_a_program_that_draws_touches_nothing_that_a_pass_keeps(tmp_path: Path) -> None:
    composer = lowered.composer(tmp_path, "llama", num_hidden_layers=1)
    low: Lowered = lower(composer, Shape((Kind.SAMPLE,), 0, 16))
    assert [launch.kernel for launch in low.launches] == [
        *("sample_learn", "sample_logits", "sample_weights", "sample_gather", "sample_settle", "sample_bins"),
        *("sample_gather", "sample_settle", "sample_sums", "sample_pick"),
    ]
    written = {operand.place for launch in low.launches for operand in launch.operands("out", "both")}
    assert {place for place in written if isinstance(place, str)} == {"io", "seen"}
    drawn = composer.geometry.max_outputs * 4
    io = [x for launch in low.launches for x in launch.operands("out", "both") if x.place == "io"]
    assert [operand.extent for operand in io] == [drawn]
