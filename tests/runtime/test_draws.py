"""Whose tokens a device draws, what it is brought of their texts, and that nobody can tell who drew."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tandem.runtime.drafters.scripted import Guess
from tandem.runtime.draws import Draws
from tandem.runtime.lane import Lane
from tandem.runtime.relaxed import Relaxation
from tandem.runtime.request import Penalties, Request, Sampling, Ticket
from tandem.runtime.wish_row import wish_row
from tandem.tree import DraftTree
from tandem.wish import FRESH, Wish
from tests.fake_guide import Remainders
from tests.fakes import Recorder, ScriptedExecutor, geometry
from tests.runtime.test_engine import answer, engine_for, serve

VOCAB = 23
WARM, COUNTED = Sampling(temperature=0.8, top_k=9, seed=3), Penalties(repetition=1.2, frequency=0.5)
PROMPT = (1, 2, 2, 9)


def lane(index: int = 0, **asked: Any) -> Lane:
    """A lane whose first token is out."""
    made = Lane(index, Ticket(Request(PROMPT, 30, **{"sampling": WARM, **asked}), Recorder()), 60, None)
    made.append([5])
    return made


@pytest.mark.parametrize(
    ("asked", "device"),
    [
        ({}, True),
        ({"sampling": Sampling()}, False),  # the argmax that every pass gives is the token
        ({"penalties": COUNTED}, True),
        ({"sampling": Sampling(), "penalties": COUNTED}, True),
        ({"penalties": Penalties(presence=1.0, min_tokens=2)}, False),
        ({"penalties": replace(COUNTED, logit_bias=((3, 1.0),))}, False),
        ({"penalties": Penalties(no_repeat_ngram_size=2)}, False),
        ({"guides": (Remainders,)}, False),
        ({"guides": (Remainders,), "penalties": COUNTED}, False),
        ({"logprobs": 0}, False),
    ],
)
def test_a_device_draws_what_needs_no_more_than_it_knows(asked: dict[str, Any], device: bool) -> None:
    wishes = Draws(VOCAB).wishes([lane(**asked)])
    assert (wishes is not None) is device
    if wishes is not None:
        assert wishes.row[0, Wish.LANE] == 0 and wishes.row[0, Wish.POSITION] == len(PROMPT) + 1


def test_relaxed_rounds_draw_no_greedy_lane() -> None:
    greedy = {"sampling": Sampling(), "penalties": COUNTED}
    assert Draws(VOCAB, greedy=False).wishes([lane(**greedy)]) is None
    assert Draws(VOCAB, greedy=False).wishes([lane(0, **greedy), lane(1)]) is not None


def test_a_text_is_brought_whole_once_then_id_by_id() -> None:
    draws, mine = Draws(VOCAB), lane(2, penalties=COUNTED)
    first = draws.wishes([mine])
    assert first is not None and not first.fresh
    ((index, counts),) = first.seen
    assert index == 2 and counts.dtype == np.int32
    assert {token: int(n) for token, n in enumerate(counts) if n} == {1: 1, 2: 1, 9: 1, 5: 2}
    mine.append([2, 5])
    second = draws.wishes([mine])
    assert second is not None and not second.seen and second.fresh == [(2, 2), (2, 5)]
    third = draws.wishes([mine])
    assert third is not None and not third.seen and not third.fresh
    mine.append([7] * (FRESH + 1))
    fourth = draws.wishes([mine])
    assert fourth is not None and not fourth.fresh and fourth.seen[0][1][7] == 2 * (FRESH + 1)


def test_another_lane_of_the_same_number_is_brought_whole() -> None:
    draws = Draws(VOCAB)
    for request in ({"penalties": COUNTED}, {}, {"penalties": COUNTED}):
        wishes = draws.wishes([lane(1, **request)])
        assert wishes is not None and [index for index, _ in wishes.seen] == ([1] if request else [])


def test_rows_of_trees_know_the_path_to_them() -> None:
    tree = DraftTree([5, 4, 3, 8], [-1, 0, 1, 0], [1.0] * 4, [""] * 4)
    plain, counted = lane(0), lane(1, penalties=COUNTED)
    greedy = lane(2, sampling=Sampling())
    wishes = Draws(VOCAB).wishes([plain, greedy, counted], [tree, DraftTree.root(5), tree])
    assert wishes is not None
    assert wishes.said == [[], [], [], [], [], [], [4], [4, 3], [8]]
    assert wishes.row[:, Wish.LANE].tolist() == [0] * 4 + [-1] + [1] * 4
    assert (wishes.row[[0, 1, 2, 3], Wish.POSITION] - 5).tolist() == [0, 1, 2, 1]


@pytest.mark.parametrize("seed", [-1, 0, 2**63, 2**64 - 1])
def test_numbers_stand_in_a_row_by_their_bits(seed: int) -> None:
    row = wish_row(3, Sampling(temperature=1.0, top_p=0.75, min_p=0.5, top_k=VOCAB), COUNTED, seed, VOCAB)
    assert int(row[Wish.SEED]) % 2**64 == seed % 2**64
    assert int(row[Wish.TOP_P]) % 2**64 == 3 << 62 and row[Wish.MIN_P] == 1 << 39
    assert row[Wish.TOP_K] == 0  # as many as there are: off
    assert np.int32(row[Wish.SCALE]).view(np.float32) == np.float32(1.4426950408889634)
    assert np.int32(row[Wish.REPETITION]).view(np.float32) == np.float32(1.2)
    off = wish_row(0, Sampling(), None, 9, VOCAB)
    assert not off.any()


class Counting(ScriptedExecutor):
    """`copied` counts rows of logits that were asked for."""

    copied = 0

    def logits(self, output: int) -> np.ndarray:
        self.copied += 1
        return super().logits(output)


def test_no_logits_of_drawn_rows_are_copied() -> None:
    """But for the first tokens, which end a prefill."""
    executor = Counting(capacities=geometry(draws=True))
    requests = [Request(PROMPT, 30, WARM), Request((3, 3), 30, WARM, penalties=COUNTED), Request((4,), 30)]
    sinks = serve(engine_for(executor, requests, [Guess(3, 1, 2), Guess(0)]), executor, *requests)
    assert [sink.ids for sink in sinks] == [answer(request) for request in requests]
    assert executor.copied == 2 and executor.draws.drawn >= 58


def test_lanes_draw_side_by_side_wherever_it_is_done() -> None:
    """Two whom the device serves, one by the host; then the same numbers for others, with texts of their own."""
    executor = ScriptedExecutor(capacities=geometry(draws=True))
    first = [
        Request(PROMPT, 12, WARM, penalties=COUNTED),
        Request((8, 8, 8), 12, WARM, penalties=replace(COUNTED, min_tokens=4)),
        Request((8, 8, 8), 12, Sampling(), penalties=Penalties(presence=1.0)),
    ]
    second = [replace(request, prompt=(7, 7), sampling=replace(WARM, seed=i)) for i, request in enumerate(first)]
    engine = engine_for(executor, first, [Guess(4, 0, 1)])
    for requests in (first, second):
        assert [sink.ids for sink in serve(engine, executor, *requests)] == [answer(r) for r in requests]
    assert executor.draws.drawn > 0


def test_an_engine_that_begins_anew_brings_its_texts_anew() -> None:
    executor = ScriptedExecutor(capacities=geometry(draws=True))
    for prompt in (PROMPT, (7, 7, 7)):
        requests = [Request(prompt, 15, replace(WARM, seed=i), penalties=COUNTED) for i in range(3)]
        sinks = serve(engine_for(executor, requests, [Guess(2, 0, 1)]), executor, *requests)
        assert [sink.ids for sink in sinks] == [answer(request) for request in requests]


def test_a_relaxed_engine_draws_sampled_lanes_alone() -> None:
    executor = ScriptedExecutor(capacities=geometry(draws=True))
    request = Request(PROMPT, 20, WARM)
    engine = engine_for(executor, [request], [Guess(3, 0, 1)], relaxation=Relaxation(tau=1.0, rank=2))
    (sink,) = serve(engine, executor, request)
    assert sink.ids == answer(request) and executor.draws.drawn >= 19
    drawn = executor.draws.drawn
    serve(engine, executor, Request(PROMPT, 20, penalties=COUNTED))
    assert executor.draws.drawn == drawn
