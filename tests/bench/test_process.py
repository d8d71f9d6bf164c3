"""The protocol between the benchmark and a side, with a child that plays one."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import pytest

from sides.process import BENCH, Run, Side, SideError, disturbance

COUNTING = '''
"""Counts up from the prompt's last id, and prints what nobody asked for."""
import sys
from sides.serving import answer, serve

def load():
    print("noise")
    if sys.argv[1] == "refuse":
        raise SystemExit("no such model")
    def generate(ids, num_tokens, by=1):
        print("more noise")
        if num_tokens > 100:
            raise SystemExit("too long")
        return answer([ids[-1] + by * (i + 1) for i in range(num_tokens)], 1.0, 1.5, 2.5, rounds=2)
    return "counting 1", generate

serve(load)
'''


@pytest.fixture
def path(tmp_path: Path) -> str:
    (tmp_path / "counting.py").write_text(COUNTING)
    return os.pathsep.join([str(BENCH), str(tmp_path)])


def _state(side: Side) -> str:
    return Path(f"/proc/{side._child.pid}/stat").read_text().rpartition(")")[2].split()[0]


def test_a_side_answers_and_keeps_its_runs(path: str) -> None:
    with Side("counting", Path(sys.executable), "counting", "go", PYTHONPATH=path) as side:
        assert side.versions == "counting 1"
        run = side.run([5, 7], 5)
        assert run.ids == [8, 9, 10, 11, 12]
        assert (run.prefill_ms, run.decode_ms) == (500.0, 1000.0)
        # Four tokens behind the first in one second, over two rounds.
        assert (run.rate, run.tokens_per_round) == (4.0, 2.0)
        assert side.run([5], 2, by=10).ids == [15, 25]
        assert [len(run.ids) for run in side.runs] == [5, 2]


def test_a_side_is_stopped_while_it_is_not_its_turn(path: str) -> None:
    with Side("counting", Path(sys.executable), "counting", "go", PYTHONPATH=path) as side:
        for _ in range(2):
            for _ in range(100):  # a signal takes a moment
                if _state(side) == "T":
                    break
                time.sleep(0.01)
            assert _state(side) == "T"
            side.run([1], 2)


def test_a_side_that_does_not_start_says_why_in_its_own_words(path: str) -> None:
    with pytest.raises(SideError, match=r"^counting: no such model$"):
        Side("counting", Path(sys.executable), "counting", "refuse", PYTHONPATH=path)


def test_a_side_that_dies_in_a_run_says_why(path: str) -> None:
    side = Side("counting", Path(sys.executable), "counting", "go", PYTHONPATH=path)
    with side, pytest.raises(SideError, match="counting: too long"):
        side.run([1], 101)


def test_disturbed_runs_are_counted() -> None:
    class Played:
        def __init__(self, *foreign: float) -> None:
            self.runs = [Run([1, 2], 1.0, 1.0, 1, cores) for cores in foreign]

    assert disturbance([Played(0.0, 0.1)]) == ""  # type: ignore[list-item]
    found = disturbance([Played(0.0, 0.5), Played(0.2)])  # type: ignore[list-item]
    assert found == "disturbed: 2 of 3 runs, other programs took up to 0.5 cores"
