"""The rows of a figure of ways, from runs made by hand; and the prompts of the workloads."""

from __future__ import annotations

from figures.ways import lines
from prompts import REQUESTS, TEXTS, Prompt
from sides.process import Run
from spread import Goal


def _run(num_tokens: int, decode_ms: float, rounds: int) -> Run:
    return Run(list(range(num_tokens)), 1.0, decode_ms, rounds, 0.0)


def test_all_prompts_together_are_time_over_time() -> None:
    # Two prompts, one turn: 10 and 90 decoded tokens; plain takes 100 and 900 ms, lookup 200 and 300.
    short = [(_run(11, 100.0, 10), _run(11, 200.0, 5))]
    long = [(_run(91, 900.0, 90), _run(91, 300.0, 9))]
    goal = Goal(1.3, 1.6)
    plain, lookup, ratio, first, second = lines(
        [Prompt("a", []), Prompt("b", [])], [short, long], ["plain", "lookup"], goal
    )
    assert plain.spread.runs == (100.0,)
    assert lookup.spread.runs == (200.0,)
    assert (ratio.spread.runs, ratio.goal, ratio.note) == ((2.0,), goal, "102 tokens, 7.1 a round")
    assert first.spread.runs == (0.5,)
    assert second.spread.runs == (3.0,)
    assert second.note == "91 tokens, 10.0 a round"
    assert first.goal is None


def test_every_way_is_held_against_the_first() -> None:
    turns = [
        (_run(5, 100.0, 4), _run(5, 50.0, 1), _run(5, 25.0, 2)),
        (_run(5, 80.0, 4), _run(5, 80.0, 1), _run(5, 160.0, 2)),
    ]
    found = lines([Prompt("copy", [])], [turns], ["plain", "wide", "narrow"], None)
    assert [line.name for line in found] == ["plain", "wide", "narrow", "wide over plain", "narrow over plain"]
    assert [line.spread.runs for line in found[-2:]] == [(2.0, 1.0), (4.0, 0.5)]
    assert [line.note for line in found[-2:]] == ["5 tokens, 4.0 a round", "5 tokens, 2.0 a round"]


def test_each_edit_names_a_file_of_about_sixty_lines() -> None:
    assert len({file for file, _ in REQUESTS["edits"]}) >= 3
    for file, _ in REQUESTS["edits"]:
        assert 55 <= len((TEXTS / file).read_text().splitlines()) <= 65
    assert min(len(REQUESTS[kind]) for kind in ("prose", "chat", "code")) >= 3
