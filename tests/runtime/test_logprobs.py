"""Logprobs against a float64 softmax, by hand, and the same whatever an engine drafts."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tandem.runtime.drafters.scripted import Guess
from tandem.runtime.logprobs import LEAST, measure
from tandem.runtime.request import Penalties, Request, Sampling
from tests.fakes import ScriptedExecutor, marks, plain_text, row_logits
from tests.runtime.test_engine import CONTEXT, VOCAB, engine_for, serve


@given(st.lists(st.floats(-40, 40, width=32), min_size=1, max_size=40), st.integers(0, 20), st.data())
def test_as_a_float64_softmax(values: list[float], count: int, data: st.DataObject) -> None:
    logits = np.array(values, np.float32)
    token = data.draw(st.integers(0, len(values) - 1))
    exact = logits.astype(np.float64) - np.logaddexp.reduce(logits.astype(np.float64))
    found = measure(logits, token, count)
    assert math.isclose(found.logprob, exact[token], rel_tol=1e-6, abs_tol=1e-6)
    ranked = sorted(range(len(values)), key=lambda i: (-logits[i], i))[:count]
    assert [i for i, _ in found.top] == ranked
    assert found.rank == 1 + sorted(range(len(values)), key=lambda i: (-logits[i], i)).index(token)
    np.testing.assert_allclose([logprob for _, logprob in found.top], exact[ranked], rtol=1e-6, atol=1e-6)


def test_what_is_impossible_or_no_number() -> None:
    logits = np.array([0.0, -np.inf, np.nan, 0.0], np.float32)
    found = measure(logits, 1, 4)
    assert found.logprob == LEAST and found.rank == 3
    assert found.top == ((0, -math.log(2)), (3, -math.log(2)), (1, LEAST), (2, LEAST))
    assert measure(np.full(3, -np.inf, np.float32), 0, 1).logprob == LEAST


@pytest.mark.parametrize("sampling", [Sampling(), Sampling(1.5, top_k=4, seed=9)])
def test_logprobs_are_the_models_own_and_the_same_whatever_is_drafted(sampling: Sampling) -> None:
    penalties = Penalties(frequency=1.0, logit_bias=((5, 3.0),))
    request = Request((4, 2), 30, sampling, penalties=penalties, logprobs=3)
    wanted = plain_text(request, VOCAB, CONTEXT)
    below = marks([*request.prompt, *wanted])
    measured = [measure(row_logits(below[1 + i], VOCAB), token, 3) for i, token in enumerate(wanted)]
    for schedule in ([], [Guess(4)], [Guess(2, 3, 4), Guess(0, 2, 2)], [Guess(6, 2, 3)]):
        executor = ScriptedExecutor()
        (sink,) = serve(engine_for(executor, [request], schedule), executor, request)
        assert (sink.ids, sink.logprobs) == (wanted, measured)
