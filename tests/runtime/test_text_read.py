"""Texts that somebody reads: markers that are special tokens stand in them, and they end where no more is wanted."""

from __future__ import annotations

import pytest

from tandem.runtime.text import TextStream
from tests.runtime.test_text import FALLBACK
from tests.service import IM_END, IM_START, byte_tokenizer

BYTES = byte_tokenizer()


def test_special_tokens_that_are_shown_stand_in_the_text() -> None:
    stream = TextStream(BYTES, ["rt|>b"], shown=["<|im_start|>", "a"])
    assert stream.push([0x61, IM_START, IM_END, 0x62, 0x63]) == ("a<|im_sta", True)
    ids = FALLBACK.encode("<s>ab", add_special_tokens=False).ids
    assert "<s>" in TextStream(FALLBACK, shown=["<s>"]).push(ids)[0]
    assert TextStream(FALLBACK).push(ids)[0].strip() == "ab"


@pytest.mark.parametrize("size", [1, 2, 3, 6])
@pytest.mark.parametrize(
    ("min_tokens", "wanted", "num_tokens"), [(0, "ab}", 3), (2, "ab}", 3), (3, "ab}c}", 5), (5, "ab}c}d", 6)]
)
def test_a_text_ends_where_no_more_is_wanted(size: int, min_tokens: int, wanted: str, num_tokens: int) -> None:
    """With the token that made it so, however tokens were grouped; what that token brought beside is given out."""
    stream = TextStream(BYTES, min_tokens=min_tokens, until=lambda piece: "}" in piece)
    text = "".join(stream.push([*b"ab}c}d"][start : start + size])[0] for start in range(0, 6, size))
    assert (text + stream.flush(), stream.num_tokens) == (wanted, num_tokens)
    assert stream.has_stops and stream.stopped == (min_tokens < 5)


def test_what_is_held_back_for_a_stop_is_told_when_it_is_given_out() -> None:
    told: list[str] = []

    def until(piece: str) -> bool:
        told.append(piece)
        return "".join(told).endswith("}d")

    stream = TextStream(BYTES, ["}e"], until=until)
    assert stream.push([*b"ab}de"]) == ("ab}d", True)
    assert told == ["a", "b", "", "}d"]
