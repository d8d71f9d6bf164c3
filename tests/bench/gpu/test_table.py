"""The table: figures chosen by name, failures that stop nothing, goals that are missed told by the exit code."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from bench.gpu import table
from bench.gpu.context import Context, Missing
from bench.gpu.table import FIGURES, chosen, measure, shape_of, summary, verdict
from figure import Figure, Line
from spread import Goal, Spread
from tandem.errors import CapacityError

ROOT = Path(__file__).resolve().parent.parent.parent.parent


def figure(value: float) -> Figure:
    return Figure(
        "step", "a step", [Line("share", Spread.of([value]), "%", Goal(85, 92)), Line("x", Spread.of([1]), "ms")]
    )


def test_every_figure_of_the_issue_is_there() -> None:
    assert set(FIGURES) == {
        *("restore", "replay", "step", "verify-1k", "verify-32k", "arithmetic", "prefill", "start", "memory"),
        *("decode-smollm2", "decode-dense27b", "gap-smollm2", "gap-dense27b", "sampled-smollm2"),
        *("hybrid-step", "hybrid-gap", "hybrid-verify-1k", "hybrid-verify-32k", "hybrid-commit", "hybrid-prefill"),
        *("hybrid-replay", "hybrid-restore", "hybrid-memory", "hybrid-start", "hybrid-sampled"),
        *("hybrid-recurrence", "hybrid-forced", "hybrid-prefill-4k"),
    }


def test_figures_are_chosen_by_first_parts_or_by_the_bundles_given() -> None:
    assert chosen("verify,gap-s", {}) == ["gap-smollm2", "verify-1k", "verify-32k"]
    small = chosen(None, {"smollm2": Path("a")})
    assert small == ["decode-smollm2", "gap-smollm2", "sampled-smollm2"]
    hybrid = chosen(None, {"hybrid27b": Path("a")})
    assert hybrid == chosen("hybrid", {}) and len(hybrid) == 14
    assert {shape_of(name) for name in set(FIGURES) - {*small, *hybrid}} == {"dense27b"}
    with pytest.raises(SystemExit, match="no figure speed"):
        chosen("speed", {})


@pytest.mark.parametrize(
    ("failure", "said"),
    [
        (Missing("it wants --dense27b BUNDLE"), "it wants --dense27b BUNDLE"),
        (CapacityError("no room"), "no room"),
        (ZeroDivisionError("by zero"), "ZeroDivisionError: by zero"),
    ],
)
def test_a_figure_that_fails_says_so_in_a_line(monkeypatch: pytest.MonkeyPatch, failure: Exception, said: str) -> None:
    def fail(context: Context) -> Figure:
        raise failure

    monkeypatch.setitem(table.FIGURES, "step", fail)
    assert measure(Context({}, repeats=1), "step", 5) == said


def test_what_was_missed_is_named_and_lines_without_goals_are_left_out() -> None:
    assert verdict(figure(80)) == ["share"]
    assert verdict(figure(86)) == []
    (line,) = summary([figure(86)])
    assert "share" in line and "reached" in line


def test_none_after_ready_is_a_goal_that_one_call_misses() -> None:
    from bench.gpu.figures.process import NONE

    assert NONE.verdict(0) == "aim reached"
    assert NONE.verdict(1) == "missed"


def test_without_bundles_every_figure_is_left_out_and_the_exit_code_says_so(tmp_path: Path) -> None:
    words = [sys.executable, "-P", "-m", "bench.gpu.table", "--only", "step,decode", "--json", str(tmp_path / "x")]
    done = subprocess.run(
        words, cwd=ROOT, capture_output=True, text=True, env={"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin"}
    )
    assert done.returncode == 1, done.stderr
    lines = done.stdout.strip().splitlines()
    assert lines[-3:] == [
        "decode-smollm2: left out: it wants --smollm2 BUNDLE",
        "step: left out: it wants --dense27b BUNDLE",
        "decode-dense27b: left out: it wants --dense27b BUNDLE",
    ]


def test_figures_are_written_as_they_come(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(table.FIGURES, "step", lambda context: figure(90))
    words = ["table", "--only", "step", "--json", str(tmp_path / "a.json"), "--markdown", str(tmp_path / "a.md")]
    monkeypatch.setattr(sys, "argv", words)
    assert table.main() == 0
    record = json.loads((tmp_path / "a.json").read_text())
    assert [one["name"] for one in record["figures"]] == ["step"]
    assert "| share | 90.0" in (tmp_path / "a.md").read_text()
