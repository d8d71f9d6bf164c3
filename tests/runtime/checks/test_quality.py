"""What is read from texts and answered to prompts, against the scripted executor's definition and sums by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tandem.runtime.checks.gate import Take, figures
from tandem.runtime.checks.quality import Reading, answer, nats, pages_wanted, read, unique_share
from tandem.runtime.request import Request
from tests.fakes import ScriptedExecutor, geometry, marks, plain_text, row_logits

V = geometry().vocab_size
IDS = [(7 * i * i + 3 * i) % V for i in range(90)]


def wanted(ids: list[int]) -> tuple[list[float], list[int], list[float]]:
    """Nats of each next token, argmax and gap of each row, in Python floats."""
    losses, choices, gaps = [], [], []
    for below, target in zip(marks(ids[:-1]), ids[1:], strict=True):
        logits = row_logits(below, V).tolist()
        losses.append(math.log(math.fsum(map(math.exp, logits))) - logits[target])
        first, second = sorted(logits)[-1:-3:-1]
        choices.append(logits.index(first))
        gaps.append(first - second)
    return losses, choices, gaps


@pytest.mark.parametrize("cut", [1, 31, 32, 33, 64, 89])
def test_a_text_is_read_in_windows_of_its_own(cut: int) -> None:
    windows, heard = [IDS[: cut + 1], IDS[cut:]], list[int]()
    found = read(ScriptedExecutor(), windows, heard.append)
    parts = [wanted(ids) for ids in windows]
    losses, choices, gaps = ([value for part in parts for value in part[i]] for i in range(3))
    assert found.loss == pytest.approx(sum(losses) / 89, rel=1e-12)
    assert found.choice.tolist() == choices and found.gap.tolist() == pytest.approx(gaps, rel=1e-5)
    assert sum(heard) == 89 and max(heard) <= 32


@given(st.lists(st.floats(-300, 300, width=32), min_size=2, max_size=50), st.data())
def test_nats_are_those_of_the_definition(logits: list[float], data: st.DataObject) -> None:
    target = data.draw(st.integers(0, len(logits) - 1))
    top = max(logits)
    exact = math.log(math.fsum(math.exp(x - top) for x in logits)) + top - logits[target]
    found = nats(np.array(logits, np.float32), target, np.empty(len(logits)))
    assert found == pytest.approx(exact, rel=1e-9, abs=1e-9)


@pytest.mark.parametrize("num_prompts", [1, 3, 4, 9])  # four lanes
def test_answers_are_plain_text(num_prompts: int) -> None:
    prompts = [IDS[i : i + 5 + 7 * (i % 4)] for i in range(num_prompts)]
    stops = [3, 4]
    found = answer(ScriptedExecutor(), prompts, max_tokens=20, stop_ids=stops)
    alone = [Request(tuple(ids), max_tokens=20, stop_ids=frozenset(stops)) for ids in prompts]
    assert found == [plain_text(request, V, 96) for request in alone]
    assert any(ids[-1] in stops for ids in found) or num_prompts < 4


def test_a_long_prompt_takes_several_passes() -> None:
    prompt = IDS[:85]
    assert answer(ScriptedExecutor(), [prompt], max_tokens=11, stop_ids=[]) == [
        plain_text(Request(tuple(prompt), max_tokens=11), V, 96)
    ]


def test_new_runs_of_four_by_hand() -> None:
    assert unique_share([[1, 2, 3, 4, 5]]) == 1.0
    assert unique_share([[1, 1, 1, 1, 1, 1, 1]]) == 0.25
    assert unique_share([[1, 2, 1, 2, 1, 2], [1, 2, 1, 2]]) == 3 / 4  # 1212 2121 1212 | 1212: new in its own answer
    assert unique_share([[1, 2, 3], []]) == 1.0


def test_pages_hold_the_longest_window_and_all_answers() -> None:
    g = geometry()  # pages of 8 tokens, 4 lanes
    assert pages_wanted(g, [[0] * 90, [0] * 12], [[0] * 3], 5) == 12
    assert pages_wanted(g, [[0] * 9], [[0] * 3, [0] * 12], 5) == 2 * 3
    assert pages_wanted(g, [[0] * 9], [[0] * 3] * 6, 5) == 4 * 1


def test_figures_count_what_agrees() -> None:
    reference = {
        "prose": Reading(2.0, np.array([5, 6, 7]), np.array([0.5, 1.0, 3.0])),
        "code": Reading(1.0, np.array([8, 9]), np.array([0.2, 2.0])),
    }
    subject = {
        "prose": Reading(2.5, np.array([5, 6, 0]), np.array([9.0, 9.0, 9.0])),
        "code": Reading(1.25, np.array([0, 9]), np.array([9.0, 0.0])),
    }
    takes = Take(subject, [[1, 1, 1, 1, 1], [2]]), Take(reference, [[1, 2, 3, 4, 5], [4, 2]])
    found = figures(*takes, confident_gap=1.0, stop_ids=[2])
    assert found["texts"] == [
        {"name": "prose", "tokens": 3, "loss": 2.5, "reference_loss": 2.0},
        {"name": "code", "tokens": 2, "loss": 1.25, "reference_loss": 1.0},
    ]
    assert found["agreement"] == {"positions": 5, "equal": 3, "confident": 3, "confident_equal": 2}
    assert found["generation"] == {
        "prompts": 2,
        "tokens": 6,
        "reference_tokens": 7,
        "stops": 1,
        "reference_stops": 1,
        "unique_4grams": 0.5,
        "reference_unique_4grams": 1.0,
    }
