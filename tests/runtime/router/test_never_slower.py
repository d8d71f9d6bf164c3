"""No slower than plain by a made-up clock, whatever drafters say and the host takes; good drafts keep their gain."""

from __future__ import annotations

import random

import pytest

from tests.runtime.router.clocked import Clocked, Source

STEPS = (0.27, 1.0, 5.0)  # ms: the host's part is from a third to a fiftieth of them


def right(chance: float, most: int, draws: random.Random) -> int:
    count = 0
    while count < most and draws.random() < chance:
        count += 1
    return count


def claims(chance: float, true: float, length: int) -> Source:
    """A line whose tokens are said to come true with `chance` each and do with `true`."""
    stated = [chance**depth for depth in range(1, length + 1)]
    return lambda out, draws: (stated, right(true, length, draws))


def nothing(out: int, draws: random.Random) -> None:
    return None


LIES, NEVER, WEAK = claims(0.9, 0.3, 10), claims(0.9, 0.0, 10), claims(0.4, 0.0, 3)
COPY, FAIR = claims(0.95, 0.95, 31), claims(0.7, 0.7, 4)


def now_and_then(out: int, draws: random.Random) -> tuple[list[float], int] | None:
    """One round in four a copy; else weak guesses or none."""
    return (COPY if draws.random() < 0.25 else draws.choice([WEAK, nothing]))(out, draws)


def by_turns(length: int, *sources: Source) -> Source:
    return lambda out, draws: sources[out // length % len(sources)](out, draws)


def mean(speeds: list[float]) -> float:
    """Of texts of one length."""
    return len(speeds) / sum(1 / speed for speed in speeds)


@pytest.mark.parametrize("step_ms", STEPS)
@pytest.mark.parametrize("source", [LIES, NEVER, WEAK, nothing], ids=["lies", "never", "weak", "nothing"])
def test_drafts_that_bring_nothing_take_next_to_nothing(source, step_ms):
    clocked = Clocked.over(step_ms)
    speeds = [clocked.text(source, 128, lane) for lane in range(16)]
    assert mean(speeds) >= 0.965 and min(speeds) >= 0.91
    assert Clocked.over(step_ms).text(source, 2000) >= 0.945


@pytest.mark.parametrize("step_ms", STEPS)
@pytest.mark.parametrize(
    ("source", "kept"), [(COPY, 0.99), (FAIR, 0.98), (now_and_then, 0.85)], ids=["copy", "fair", "now and then"]
)
def test_good_drafts_keep_their_gain(source, kept, step_ms):
    """Of what they gain where nothing is decided by the clock."""
    clocked, free = Clocked.over(step_ms), Clocked.over(step_ms, learn_cost=False)
    speeds, freely = ([over.text(source, 128, lane) for lane in range(32)] for over in (clocked, free))
    assert mean(speeds) >= kept * mean(freely) > 1.5


@pytest.mark.parametrize("step_ms", STEPS)
@pytest.mark.parametrize("before", [WEAK, NEVER, nothing], ids=["weak", "never", "nothing"])
def test_copies_that_come_late_are_found(before, step_ms):
    """Behind 1,000 tokens of nothing 1,000 that are copied four to five times as fast: at best twice 0.62 of plain."""
    assert Clocked.over(step_ms).text(by_turns(1000, before, COPY), 2000) >= 1.45


@pytest.mark.parametrize("step_ms", STEPS)
@pytest.mark.parametrize("length", [30, 100, 300])
def test_regimes_that_change_cost_little_and_gain_much(length, step_ms):
    """What is said is the same in both, copies all along. Where looking takes a fourth of a step, 30 tokens are over
    before a lane has rested; then at least nothing is lost."""
    clocked = Clocked.over(step_ms)
    found = clocked.text(by_turns(length, claims(0.95, 0.0, 31), COPY), 2400)
    assert found >= (1.1 if length * step_ms > 10 else 0.98)


@pytest.mark.parametrize("step_ms", STEPS)
def test_a_slow_machine_does_not_end_looking(step_ms):
    """Everything takes five times as long during one text; the next gain what they did."""
    clocked = Clocked.over(step_ms)
    before = mean([clocked.text(FAIR, 128) for _ in range(24)])
    clocked.slow = 5.0
    clocked.text(FAIR, 128)
    clocked.slow = 1.0
    assert mean([clocked.text(FAIR, 128) for _ in range(24)]) >= 0.95 * before


def test_a_step_that_dwarfs_the_host_is_looked_at_in_every_round():
    clocked, asked = Clocked.over(50.0), list[int]()

    def seen(out: int, draws: random.Random) -> tuple[list[float], int] | None:
        asked.append(out)
        return now_and_then(out, draws)

    clocked.text(seen, 1000)
    assert clocked.rest == 0 and len(asked) > 300
