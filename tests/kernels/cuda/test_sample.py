"""Draws by the Triton kernels are the host's, id by id, wherever bins and chunks end: docs/sampling.md."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tandem.kernels.cuda import sample_settle
from tandem.kernels.cuda.sample_logits import CHUNK
from tandem.runtime.penalties import PenalizedText
from tandem.runtime.request import Penalties, Sampling
from tandem.runtime.sampling import draw
from tandem.runtime.wish_row import wish_row
from tandem.wish import WISH, Wish
from tests.kernels.cuda.sampling import draw_rows
from tests.penalties_reference import penalized
from tests.sampling_reference import drawn

Wanted = tuple[Sampling, int, int]
"""How to draw, the seed, the token's position."""


def wishes(wanted: Sequence[Wanted], width: int) -> np.ndarray:
    rows = np.stack([wish_row(0, sampling, None, seed, width) for sampling, seed, _ in wanted])
    rows[:, Wish.POSITION] = [position for *_, position in wanted]
    return rows


def check(logits: np.ndarray, wanted: Sequence[Wanted], rows: int = 0) -> None:
    """The kernels' ids are the host's."""
    host = [draw(row, *how) for row, how in zip(logits, wanted, strict=True)]
    assert draw_rows(logits, wishes(wanted, logits.shape[1]), rows=rows) == host


def noisy(rows: int, width: int, *, scale: float = 4.0, seed: int = 0) -> np.ndarray:
    return (np.random.default_rng((seed, rows, width)).standard_normal((rows, width)) * scale).astype(np.float32)


MANNERS = (
    Sampling(temperature=1.0),
    Sampling(temperature=0.7, top_p=0.9),
    Sampling(temperature=1.3, top_k=40),
    Sampling(temperature=0.6, top_k=20, top_p=0.95),
    Sampling(temperature=2.0, top_k=1000, top_p=0.5, min_p=0.02),
    Sampling(temperature=0.8, min_p=0.1),
    Sampling(temperature=1.0, top_p=0.99999, top_k=3000),
    Sampling(),
)


@pytest.mark.parametrize("width", [1, 2, 333, CHUNK, 2 * CHUNK + 5])
@pytest.mark.parametrize("scale", [0.5, 6.0])
def test_every_manner_draws_the_hosts_id(width: int, scale: float) -> None:
    wanted = [(how, 3 + 7919 * i, 100 + i) for i, how in enumerate(MANNERS)]
    check(noisy(len(wanted), width, scale=scale), wanted, rows=len(wanted) + 1)


@pytest.mark.parametrize("few", [1, 256])
def test_the_last_one_that_stays_is_the_same_sorted_or_sought(monkeypatch: pytest.MonkeyPatch, few: int) -> None:
    monkeypatch.setattr(sample_settle, "FEW", few)
    wanted = [(how, 3 + 7919 * i, 100 + i) for i, how in enumerate(MANNERS)]
    for logits in (noisy(len(wanted), 200, scale=0.5), np.round(noisy(len(wanted), 200, scale=1.0))):
        check(logits, wanted)


def test_many_draws_of_one_row() -> None:
    logits = np.repeat(noisy(1, 700), 8, 0)
    for how in (MANNERS[0], MANNERS[3]):
        check(logits, [(how, -1 - i, i * 10_000) for i in range(8)])


FEW = st.sampled_from([-math.inf, math.inf, math.nan, -0.0, 0.0, 1.0, 1.5, -3.0, 1e-40, -1e-40, 3e38, -3e38, 20.0])


@settings(max_examples=15, deadline=None)
@given(data=st.data())
def test_ties_and_odd_logits(data: st.DataObject) -> None:
    """Against the reference in Python's own numbers: few values, so that every filter ends among equals."""
    width = data.draw(st.integers(1, 40))
    logits = np.array(data.draw(st.lists(FEW | st.floats(-9, 9, width=32), min_size=width, max_size=width)), np.float32)
    how = Sampling(
        temperature=data.draw(st.sampled_from([0.0, 1e-35, 0.3, 1.0, 2.5, 1e35])),
        top_k=data.draw(st.integers(-1, width + 1)),
        top_p=data.draw(st.sampled_from([1.0, 0.999999, 0.9, 0.5, 0.2, 1e-9, 1e-300])),
        min_p=data.draw(st.sampled_from([0.0, 1e-13, 0.3, 1.0])),
    )
    seed, position = data.draw(st.integers(-(2**63), 2**64)), data.draw(st.integers(0, 2**20))
    found = draw_rows(logits[None], wishes([(how, seed, position)], width))
    assert found == [drawn(logits.tolist(), how, seed, position)]


@pytest.mark.parametrize("same", [0.0, -2.0])
def test_a_vocabulary_of_equals_is_cut_by_id(same: float) -> None:
    """Every id is a candidate of either filter: the list is as long as it can be."""
    logits = np.full((4, CHUNK + 77), same, np.float32)
    ways = [Sampling(temperature=1.0, top_k=5), Sampling(temperature=1.0, top_p=0.3)]
    ways += [Sampling(temperature=1.0, top_k=900, top_p=0.6), Sampling(temperature=1.0, top_k=CHUNK + 70)]
    check(logits, [(how, 5, 5) for how in ways])


def test_rows_that_wish_nothing_and_rows_that_are_not_there_cost_no_id() -> None:
    logits, rows = noisy(3, 300), np.zeros((3, WISH), np.int64)
    rows[:, Wish.LANE] = -1
    rows[1] = wishes([(MANNERS[1], 9, 9)], 300)[0]
    assert draw_rows(logits, rows, rows=4) == [-1, draw(logits[1], MANNERS[1], 9, 9), -1]


PENALTIES = (
    Penalties(repetition=1.3),
    Penalties(frequency=0.7),
    Penalties(presence=2.0, frequency=-0.1),
    Penalties(repetition=0.8, presence=-1.0, frequency=0.3),
)


@pytest.mark.parametrize("temperature", [0.0, 0.9])
def test_penalties_look_at_prompt_answer_and_path(temperature: float) -> None:
    width, prompt, lanes = 90, [4, 4, 17, 89, 0], 3
    rng = np.random.default_rng(3)
    answers = [rng.integers(0, width, n).tolist() for n in (0, 9, 40, 3)]
    paths = [rng.integers(0, width, n).tolist() for n in (0, 1, 31, 5)]
    logits, how = noisy(4, width), Sampling(temperature=temperature, top_p=0.9 if temperature else 1.0)
    seen, rows, wanted = np.full((lanes, width), -77, np.int32), [], []
    for lane, penalties in enumerate(PENALTIES):
        text = PenalizedText(penalties, prompt, ())
        text.extend(answers[lane])
        seen[lane % lanes] = text.seen(width)
        row = wish_row(lane % lanes, how, penalties, 11, width)
        row[Wish.POSITION] = 50 + lane
        rows.append(row)
        changed = penalized(logits[lane], penalties, prompt, answers[lane] + paths[lane], ())
        wanted.append(draw(changed, how, 11, 50 + lane))
        if lane == lanes - 1:  # the first lanes at once; the last one has a number that was another's
            assert draw_rows(logits[:lanes], np.stack(rows), said=paths[:lanes], seen=seen) == wanted
    assert draw_rows(logits[3:], np.stack(rows[3:]), said=paths[3:], seen=seen) == wanted[3:]


def test_what_is_brought_id_by_id_is_what_is_brought_whole() -> None:
    width, penalties = 50, Penalties(frequency=0.5)
    text = PenalizedText(penalties, [1, 2], ())
    seen = np.zeros((2, width), np.int32)
    seen[1] = text.seen(width)
    other = seen[0].copy()
    text.extend([7, 7, 2, 49, 7])
    row = wish_row(1, MANNERS[0], penalties, 0, width)
    draw_rows(noisy(1, width), row[None], seen=seen, fresh=[(1, token) for token in (7, 7, 2, 49, 7)])
    assert seen[1].tolist() == text.seen(width).tolist()
    assert seen[1, 7] == 6 and seen[1, 2] == 3 and seen[1, 1] == 1
    assert (seen[0] == other).all()
