"""The rows of a lookup figure, from runs made by hand."""

from __future__ import annotations

from figures.lookup import lines
from prompts import REQUESTS, TEXTS, Prompt
from sides.process import Run
from spread import Goal


def _run(num_tokens: int, decode_ms: float, rounds: int) -> Run:
    return Run(list(range(num_tokens)), 1.0, decode_ms, rounds, 0.0)


def test_all_prompts_together_are_time_over_time() -> None:
    # Two prompts, one turn: 10 and 90 decoded tokens; plain takes 100 and 900 ms, lookup 200 and 300.
    short = [(_run(11, 100.0, 10), _run(11, 200.0, 5))]
    long = [(_run(91, 900.0, 90), _run(91, 300.0, 9))]
    plain, lookup, ratio, first, second = lines([Prompt("a", []), Prompt("b", [])], [short, long], Goal(1.3, 1.6))
    assert plain.spread.runs == (100.0,)
    assert lookup.spread.runs == (200.0,)
    assert ratio.spread.runs == (2.0,)
    assert first.spread.runs == (0.5,)
    assert second.spread.runs == (3.0,)
    assert second.note == "91 tokens, 10.0 a round"
    assert first.goal is None


def test_one_prompt_has_one_row() -> None:
    found = lines([Prompt("copy", [])], [[(_run(5, 100.0, 4), _run(5, 50.0, 1))]], None)
    assert [line.name for line in found] == ["plain", "lookup", "lookup over plain"]
    assert found[-1].note == "5 tokens, 4.0 a round"


def test_each_edit_names_a_file_of_about_sixty_lines() -> None:
    assert len({file for file, _ in REQUESTS["edits"]}) >= 3
    for file, _ in REQUESTS["edits"]:
        assert 55 <= len((TEXTS / file).read_text().splitlines()) <= 65
    assert min(len(REQUESTS["chat"]), len(REQUESTS["code"])) >= 3
