"""Delivery: ids become events, the first at once, the rest gathered, every id in one of them."""

from __future__ import annotations

import time

from tandem.runtime.delivery import Delivery, Delta, End, Event
from tandem.runtime.request import FinishReason, LaneStats
from tandem.runtime.text import TextStream
from tests.service import byte_tokenizer


def delivered(pace: float, *rounds: bytes, stops: tuple[str, ...] = (), pause: float = 0.0) -> list[Event]:
    events: list[Event] = []
    delivery = Delivery(TextStream(byte_tokenizer(), stops), events.append, pace)
    for ids in rounds:
        if delivery.tokens(list(ids)):
            break
        time.sleep(pause)
    delivery.finished(FinishReason.LENGTH, LaneStats(), None)
    return events


def texts(events: list[Event]) -> list[str]:
    return [event.text for event in events]


def test_the_first_round_is_out_at_once_and_fast_ones_are_gathered() -> None:
    events = delivered(60.0, b"a", b"bc", b"d")
    assert texts(events) == ["a", "bcd"]
    assert events[0] == Delta("a", 1)
    assert isinstance(events[1], End) and events[1].ids == tuple(b"abcd")


def test_rounds_slower_than_the_pace_have_an_event_each() -> None:
    assert texts(delivered(0.001, b"a", b"bc", b"d", pause=0.005)) == ["a", "bc", "d", ""]
    assert texts(delivered(0.0, b"a", b"bc", b"d")) == ["a", "bc", "d", ""]


def test_half_a_character_waits_and_does_not_start_the_pace() -> None:
    first, second = "\u00e9".encode()[:1], "\u00e9".encode()[1:]
    assert texts(delivered(60.0, first, second + b"a", b"b")) == ["\u00e9a", "b"]


def test_a_stop_string_is_met_in_its_own_round() -> None:
    """Gathering would let the lane run on behind it."""
    events = delivered(60.0, b"a", b"bX", b"never asked for", stops=("X",))
    assert texts(events) == ["a", "b", ""]
    assert isinstance(events[-1], End) and events[-1].ids == tuple(b"abX")
