"""Relaxed accept rules: the rule by hand, in the walk, and what tells of it."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from tandem.runtime.engine import Engine
from tandem.runtime.relaxed import Relaxation
from tandem.runtime.request import Penalties, Request, Sampling
from tests.fake_routers import EvenRouter, FreePrices
from tests.fakes import Recorder
from tests.service import ScriptedWorker, scripted_service
from tests.toy import Stubborn, ToyExecutor

LOGITS = np.array([1.0, 3.0, 2.5, 2.75, -np.inf], np.float32)
ROWS = np.array([[0, 1, 0.75], [0.5, 1, 0.9375], [3, 0, 0]], np.float32)


@pytest.mark.parametrize(
    ("rule", "drafted", "token"),
    [
        (Relaxation(tau=0.3), [2, 3], 3),
        (Relaxation(tau=0.3), [2, 3, 1], 1),  # the model's own is among them
        (Relaxation(tau=0.25), [3], 3),  # within means at most
        (Relaxation(tau=0.24), [3], 1),
        (Relaxation(rank=2), [0, 2, 3], 3),
        (Relaxation(rank=2), [2], 1),
        (Relaxation(rank=3), [2], 2),
        (Relaxation(tau=0.3, rank=3), [2], 1),  # both are asked
        (Relaxation(tau=0.5, rank=2), [2], 1),
        (Relaxation(tau=0.5, rank=3), [2], 2),
        (Relaxation(), [0], 0),
        (Relaxation(), [4], 1),  # impossible
        (Relaxation(), [4, 0], 0),
        (Relaxation(), [], 1),
    ],
)
def test_by_hand(rule: Relaxation, drafted: list[int], token: int) -> None:
    assert rule.choice(LOGITS, 1, drafted) == token


def test_equal_logits_rank_by_id() -> None:
    flat = np.array([1, 2, 2, 2], np.float32)
    assert Relaxation(rank=2).choice(flat, 1, [3]) == 1
    assert Relaxation(rank=2).choice(flat, 1, [3, 2]) == 2
    assert Relaxation(tau=0.0).choice(flat, 1, [3]) == 3
    assert Relaxation(tau=0.0).choice(flat, 1, [0]) == 1


def test_nothing_passes_what_is_no_number() -> None:
    assert Relaxation().choice(np.array([math.nan, 1, 2], np.float32), 2, [0]) == 2


def served(relaxation: Relaxation | None, drafter: Stubborn, request: Request) -> tuple[list[int], Engine]:
    engine = Engine(
        ToyExecutor(ROWS), drafters=lambda: drafter, prices=FreePrices(), router=EvenRouter(), relaxation=relaxation
    )
    sink = Recorder()
    engine.submit(request, sink)
    while engine.step():
        pass
    if request.logprobs is not None:
        assert [found.id for found in sink.logprobs] == sink.ids
    return sink.ids, engine


def test_a_walk_takes_what_is_nearly_right() -> None:
    """Behind 1, token 2 is 1/16 below the best, behind 0 it is 1/4; behind 2 nothing is near the best."""
    request = Request((0,), 9)
    ids, engine = served(None, Stubborn([2, 1]), request)
    assert ids == [1] * 9 and engine.meter.relaxed.value == 0
    ids, engine = served(Relaxation(tau=0.1), Stubborn([2, 1]), request)
    assert ids == [1, 2, 0] * 3 and engine.meter.relaxed.value == 3
    assert served(Relaxation(tau=0.1), Stubborn([2, 1]), replace(request, logprobs=2))[0] == [1, 2, 0] * 3
    ids, _ = served(Relaxation(tau=0.25), Stubborn([2, 1]), request)
    assert ids == [1, 2, 0, 2, 0, 2, 0, 2, 0]
    ids, _ = served(Relaxation(rank=3), Stubborn([2, 1]), request)
    assert ids == [1, 2, 1, 1, 2, 1, 1, 2, 0]  # with room for two, one is drafted


def test_the_likeliest_branch_is_taken_and_guides_come_first() -> None:
    both, request = Stubborn([0, 2], [0, 0]), Request((0,), 5)
    assert served(Relaxation(tau=0.5), both, request)[0] == [1, 2, 0, 2, 0]
    biased = replace(request, penalties=Penalties(logit_bias=((2, -0.5),)))
    assert served(Relaxation(tau=0.4), both, biased)[0] == [1] * 5


def test_sampled_texts_are_left_alone() -> None:
    request = Request((0,), 60, Sampling(1.0, seed=5))
    exact, _ = served(None, Stubborn([2, 1]), request)
    relaxed, engine = served(Relaxation(), Stubborn([2, 1]), request)
    assert relaxed == exact and engine.meter.relaxed.value == 0


def test_the_fingerprint_tells_of_it() -> None:
    plain = scripted_service(ScriptedWorker())
    names = {
        replace(plain, relaxation=rule).fingerprint.removeprefix(plain.fingerprint)
        for rule in (None, Relaxation(0.5), Relaxation(rank=3), Relaxation(0.25, 2))
    }
    assert names == {"", "-relaxed-tau0.5", "-relaxed-rank3", "-relaxed-tau0.25-rank2"}
