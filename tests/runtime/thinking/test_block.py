"""Where a block of thoughts stands, against a look at the whole text: any tokens, tags in any pieces."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tandem.runtime.thinking.block import BlockReader, Phase, Tags, ThoughtCount
from tests.thinking_reference import WORDS, standing

READER = BlockReader(Tags(), WORDS.__getitem__)
ids = st.lists(st.integers(0, len(WORDS) - 1), max_size=14)
OPENINGS = st.sampled_from([[], [1], [1, 8], [9, 6, 3, 4, 8, 7], [9], [7]])


@settings(max_examples=400)
@given(prompt=OPENINGS, begin=OPENINGS, rest=ids)
def test_every_token_stands_where_the_whole_text_has_it(prompt: list[int], begin: list[int], rest: list[int]) -> None:
    answer = begin + rest
    in_thoughts = READER.opened_by(prompt)
    place, count = READER.begin(in_thoughts), ThoughtCount(READER, in_thoughts)
    for n in range(len(answer) + 1):
        if n:
            place = READER.after(place, answer[n - 1])
            count.add(answer[n - 1 : n])
        found = standing(prompt, answer[:n], WORDS.__getitem__)
        assert (place.phase is Phase.OPEN, place.reasoning_tokens) == (found.is_open, found.reasoning)
        assert place.thoughts == found.thoughts and count.tokens == found.reasoning <= n


@pytest.mark.parametrize(
    ("prompt", "answer", "phase", "thoughts", "reasoning"),
    [
        ("<think>\n", "ab</think>c", Phase.OVER, 9, 10),
        ("<think>\n", "ab</thinkc", Phase.OPEN, 10, 10),
        ("<think></think>\n", "ab</think>c", Phase.OVER, 0, 0),
        ("x", "<think>ab</think>c", Phase.OVER, 9, 17),
        ("x", "<thi", Phase.AHEAD, 0, 0),
        ("x", "so <think>ab", Phase.OVER, 0, 0),
        ("x", "\n<think>ab", Phase.OVER, 0, 0),
        ("<think>x", "ab</think>", Phase.OVER, 0, 0),
        ("<think>", "a</think></think>", Phase.OVER, 8, 9),
        ("<think>", "a</think><think>b</think>", Phase.OVER, 8, 9),
        ("<think>", "a</</think>b", Phase.OVER, 10, 11),
    ],
)
def test_bytes_alone(prompt: str, answer: str, phase: Phase, thoughts: int, reasoning: int) -> None:
    """A token a byte, so that `</think>` takes eight."""
    reader = BlockReader(Tags(), lambda token: bytes([token]))
    place = reader.begin(reader.opened_by(prompt.encode()))
    for token in answer.encode():
        place = reader.after(place, token)
    assert (place.phase, place.thoughts, place.reasoning_tokens) == (phase, thoughts, reasoning)


def test_a_long_prompt_is_not_read_whole() -> None:
    read = list[int]()
    reader = BlockReader(Tags(), lambda token: read.append(token) or b"<think>"[token : token + 1])
    assert reader.opened_by([0] * 10_000 + list(range(7))) and len(read) < 100
