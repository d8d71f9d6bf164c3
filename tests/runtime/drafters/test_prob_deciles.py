"""Rates of a head's guesses: its own word first, then what came of guesses like it."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tandem.runtime.drafters.prob_deciles import PRIOR_HITS, ProbDeciles

probs = st.floats(0.0, 1.0)


@given(prob=probs)
def test_rates_start_at_the_heads_own_word(prob: float) -> None:
    assert ProbDeciles().rate(prob) == pytest.approx(prob)


@given(counts=st.lists(st.tuples(probs, st.booleans()), max_size=40), prob=probs)
def test_a_rate_is_what_came_true_over_what_was_promised_in_its_tenth(
    counts: list[tuple[float, bool]], prob: float
) -> None:
    deciles = ProbDeciles()
    for told, hit in counts:
        deciles.count(told, hit)
    alike = [(told, hit) for told, hit in counts if min(int(told * 10), 9) == min(int(prob * 10), 9)]
    promised, came = sum(told for told, _ in alike), sum(hit for _, hit in alike)
    wanted = min(1.0, prob * (came + PRIOR_HITS) / (promised + PRIOR_HITS))
    assert deciles.rate(prob) == pytest.approx(wanted)
    assert 0.0 <= deciles.rate(prob) <= 1.0


@pytest.mark.parametrize("faith", [1.0, 0.5])
def test_a_head_that_promises_too_much_is_believed_as_far_as_it_was_right(faith: float) -> None:
    deciles, dice = ProbDeciles(), random.Random(3)
    for _ in range(20_000):
        prob = dice.random()
        deciles.count(prob, dice.random() < prob * faith)
    for tenth in range(1, 10):
        assert deciles.rate(tenth / 10 + 0.05) == pytest.approx(faith * (tenth / 10 + 0.05), rel=0.25)


def test_what_held_once_is_forgotten() -> None:
    deciles = ProbDeciles()
    for hit in (True, False):
        for _ in range(3000):
            deciles.count(0.75, hit)
    assert deciles.rate(0.75) < 0.02
