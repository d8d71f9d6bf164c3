"""Penalties: by hand, against Transformers, against the definition taken one id after the other."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tandem.errors import RequestError
from tandem.runtime.penalties import PenalizedText, validate
from tandem.runtime.request import Penalties
from tests.penalties_reference import penalized

VOCAB = 12
LOGITS = np.linspace(-3, 3, VOCAB, dtype=np.float32)
ids = st.integers(0, VOCAB - 1)
biases = st.dictionaries(ids, st.floats(-100, 100, width=32), max_size=3).map(lambda bias: tuple(bias.items()))
wishes = st.builds(
    Penalties,
    repetition=st.sampled_from([1.0, 1.25, 0.4]),
    presence=st.floats(-2, 2, width=32),
    frequency=st.floats(-2, 2, width=32),
    no_repeat_ngram_size=st.integers(0, 4),
    logit_bias=st.lists(st.tuples(ids, st.floats(-100, 100, width=32)), max_size=3, unique_by=lambda x: x[0]).map(
        tuple
    ),
    min_tokens=st.integers(0, 6),
)


def text(wanted: Penalties, prompt: list[int], answer: list[int], stop_ids: set[int] | None = None) -> PenalizedText:
    held = PenalizedText(wanted, prompt, stop_ids or set())
    held.extend(answer)
    return held


def test_by_hand() -> None:
    logits = np.array([2.0, -2.0, 1.0, 0.5, 3.0], np.float32)
    found = text(Penalties(repetition=2.0, presence=0.25, frequency=0.5), [0, 1], [1, 2, 1]).applied(logits)
    # 0 stands in the prompt alone; 1 twice and 2 once in the answer; 3 and 4 nowhere.
    assert found.tolist() == [1.0, -4.0 - 2 * 0.5 - 0.25, 0.5 - 0.5 - 0.25, 0.5, 3.0]
    assert logits.tolist() == [2.0, -2.0, 1.0, 0.5, 3.0]


@given(
    wishes,
    st.lists(ids, max_size=12),
    st.lists(ids, max_size=9),
    st.lists(ids, max_size=5),
    st.lists(st.floats(-9, 9, width=32), min_size=VOCAB, max_size=VOCAB),
    st.sets(ids, max_size=VOCAB),
    st.integers(1, 9),
)
def test_any_text_and_draft(
    wanted: Penalties,
    prompt: list[int],
    answer: list[int],
    said: list[int],
    logits: list[float],
    stops: set[int],
    by: int,
) -> None:
    held, row = PenalizedText(wanted, prompt, stops), np.array(logits, np.float32)
    for start in range(0, len(answer), by):
        held.extend(answer[start : start + by])
    found = held.applied(row, said)
    np.testing.assert_array_equal(found, penalized(row, wanted, prompt, [*answer, *said], stops))
    held.applied(row, [0, 0, 0])  # what a draft said leaves no trace
    np.testing.assert_array_equal(held.applied(row, said), found)


@pytest.mark.parametrize("size", [1, 2, 3])
def test_as_transformers_has_them(size: int) -> None:
    from transformers import NoRepeatNGramLogitsProcessor, RepetitionPenaltyLogitsProcessor

    prompt, answer = [1, 2, 3, 1, 2, 5, 1], [2, 4, 1, 2]
    row = torch.from_numpy(LOGITS)[None]
    everything = torch.tensor([prompt + answer])
    wanted = NoRepeatNGramLogitsProcessor(size)(everything, row.clone())[0]
    found = text(Penalties(no_repeat_ngram_size=size), prompt, answer).applied(LOGITS)
    np.testing.assert_array_equal(found, wanted.numpy())
    wanted = RepetitionPenaltyLogitsProcessor(1.7)(everything, row.clone())[0]
    np.testing.assert_array_equal(text(Penalties(1.7), prompt, answer).applied(LOGITS), wanted.numpy())


def test_n_grams_never_block_everything() -> None:
    held = text(Penalties(no_repeat_ngram_size=1), list(range(VOCAB)), [])
    np.testing.assert_array_equal(held.applied(LOGITS), LOGITS)


def test_stop_ids_wait_for_min_tokens() -> None:
    held = text(Penalties(min_tokens=3), [1, 2], [4], {11, 0})
    assert held.applied(LOGITS).argmax() == 10
    assert held.applied(LOGITS, [5]).argmax() == 10
    assert held.applied(LOGITS, [5, 6]).argmax() == 11


def test_stop_ids_beyond_the_vocabulary_never_come() -> None:
    held = text(Penalties(min_tokens=3), [1, 2], [4], {11, VOCAB, 2**31 - 1})
    wanted = LOGITS.copy()
    wanted[11] = -np.inf
    np.testing.assert_array_equal(held.applied(LOGITS), wanted)
    np.testing.assert_array_equal(text(Penalties(min_tokens=3), [1], [], {VOCAB}).applied(LOGITS), LOGITS)
    every = text(Penalties(min_tokens=3), [1], [], {*range(VOCAB), VOCAB})
    np.testing.assert_array_equal(every.applied(LOGITS), LOGITS)


@pytest.mark.parametrize(
    ("wanted", "param"),
    [
        (Penalties(repetition=0), "repetition_penalty"),
        (Penalties(repetition=float("nan")), "repetition_penalty"),
        (Penalties(presence=2.5), "presence_penalty"),
        (Penalties(frequency=float("nan")), "frequency_penalty"),
        (Penalties(no_repeat_ngram_size=-1), "no_repeat_ngram_size"),
        (Penalties(min_tokens=-2), "min_tokens"),
        (Penalties(min_tokens=6), "min_tokens"),
        (Penalties(logit_bias=((VOCAB, 1.0),)), "logit_bias"),
        (Penalties(logit_bias=((3, 101.0),)), "logit_bias"),
    ],
)
def test_what_is_out_of_range_is_named(wanted: Penalties, param: str) -> None:
    with pytest.raises(RequestError, match=param) as caught:
        validate(wanted, VOCAB, 5)
    assert caught.value.param == param
