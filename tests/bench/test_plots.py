"""Plots: what is drawn stands where the numbers say, and files that are something else are one line."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

import plots
from chart import Chart, Frame, Point, Series, ticks
from tandem.runtime.checks.recording import Recording, Text
from tandem.tree import DraftTree
from tests.runtime.router.replay import flat_table

SVG = "{http://www.w3.org/2000/svg}"


def draw(monkeypatch: pytest.MonkeyPatch, *words: object) -> int:
    monkeypatch.setattr(sys, "argv", ["plots.py", *map(str, words)])
    return plots.main()


def words_of(root: ElementTree.Element) -> list[str]:
    return [element.text or "" for element in root.iter(f"{SVG}text")]


@given(st.floats(1e-6, 1e9))
def test_marks_are_even_round_and_few(top: float) -> None:
    marks = ticks(top)
    step = marks[1]
    assert marks[0] == 0 and 2 <= len(marks) <= 8 and marks[-1] >= top * (1 - 1e-6)
    assert marks[-1] < top + 1.01 * step
    assert f"{step:.0e}"[0] in "125" and all(mark == pytest.approx(i * step) for i, mark in enumerate(marks))


def test_a_bar_is_as_high_as_its_number_and_a_whisker_spans_its_runs() -> None:
    series = [Series("a", [Point(0, 10.0, 5.0, 12.0), Point(1, 20.0)]), Series("b", [Point(0, 5.0), Point(1, 0.0)])]
    root = ElementTree.fromstring(Chart("t", "x", "y", series, names=["one, two", "<three>"]).svg())
    bars = [element for element in root.iter(f"{SVG}rect") if element.get("class") == "bar"]
    heights = [float(bar.get("height", "")) for bar in bars]
    assert heights == pytest.approx([heights[1] / 2, heights[1], heights[1] / 4, 0.0], abs=0.2)
    lefts = [float(bar.get("x", "")) for bar in bars]
    assert lefts[0] < lefts[2] < lefts[1] < lefts[3]
    (whisker,) = [element for element in root.iter(f"{SVG}line") if element.get("class") == "whisker"]
    assert float(whisker.get("y1", "")) - float(whisker.get("y2", "")) == pytest.approx(heights[1] * 7 / 20, abs=0.2)
    assert {"one", "two", "<three>", "a", "b", "t", "x", "y"} <= set(words_of(root))


def test_a_line_goes_through_its_points_in_order() -> None:
    points = [Point(32, 5.0), Point(1, 1.0), Point(8, 2.0)]
    root = ElementTree.fromstring(Chart("t", "x", "y", [Series("a", points)]).svg())
    (line,) = root.iter(f"{SVG}polyline")
    found = [tuple(map(float, pair.split(","))) for pair in line.get("points", "").split()]
    frame = Frame((1, 32), ticks(5.0))
    assert found == [pytest.approx((frame.x(p.x), frame.y(p.y)), abs=0.06) for p in sorted(points, key=lambda p: p.x)]


@pytest.mark.parametrize("values", [[], [Point(0, float("nan"))], [Point(0, 1.0, 0.0, float("inf"))]])
def test_nothing_and_no_numbers_are_refused(values: list[Point]) -> None:
    with pytest.raises(ValueError, match="nothing to draw"):
        Chart("t", "x", "y", [Series("a", values)]).svg()


def test_staircases_of_a_bundle_are_its_lowest_class(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = {"2048": {"extend": {"1": 99.0}}, "1024": {"extend": {"1": 1.0, "128": 9.0}, "commit": {"1": 0.5}}}
    (tmp_path / "prices.json").write_text(json.dumps(table))
    chart = plots.staircase([tmp_path])
    assert chart.series == [Series("extend", [Point(1, 1.0)]), Series("commit", [Point(1, 0.5)])]
    assert draw(monkeypatch, "staircase", tmp_path, tmp_path / "prices.json", "-o", tmp_path / "out.svg") == 0
    assert f"{tmp_path.name}, extend" in words_of(ElementTree.fromstring((tmp_path / "out.svg").read_text()))


def test_what_comes_true_is_counted_by_position_and_source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Forty positions: the copy's first token is right at all, its second at half of them, the model's at none."""
    tokens = [5] + [6] * 80
    drafts: list[list[DraftTree]] = [[]]
    for position in range(1, 81):
        second = 6 if position % 2 else 9
        copied = DraftTree.chain(tokens[position - 1], [6, second], [0.9, 0.8], "local")
        drafts.append([copied, DraftTree.chain(tokens[position - 1], [7], [0.9], "mtp")] if position < 41 else [])
    Recording([Text("a", "code", 3, tokens, drafts, [0.0] * 81)], flat_table()).save(tmp_path / "rec.npz")
    chart = plots.accepted([tmp_path / "rec.npz"])
    assert chart.series == [Series("local", [Point(1, 1.0), Point(2, 0.5)]), Series("mtp", [Point(1, 0.0)])]
    assert draw(monkeypatch, "accepted", tmp_path / "rec.npz", "-o", tmp_path / "out.svg") == 0


def replayed(**workloads: float) -> dict[str, Any]:
    def tally(of: float) -> dict[str, Any]:
        return {"staircut": {"predicted": [of] * 10, "accepted": [2 * of] * 10}}

    return {"texts.npz": {"about": {}, "workloads": {name: tally(of) for name, of in workloads.items()}}}


def test_deciles_are_summed_over_workloads_and_files(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text(json.dumps(replayed(code=1.0, chat=2.0, all=3.0)))
    (tmp_path / "b.json").write_text(json.dumps(replayed(all=4.0)))
    predicted, came = plots.deciles([tmp_path / "a.json", tmp_path / "b.json"]).series
    assert [point.y for point in predicted.points] == [7.0] * 10 and [point.y for point in came.points] == [14.0] * 10


def test_workloads_are_bars_of_rates(tmp_path: Path) -> None:
    def line(name: str, unit: str, median: float) -> dict[str, Any]:
        return {"name": name, "unit": unit, "median": median, "least": median - 1, "greatest": median + 1}

    lines = [line("plain", "tok/s", 100.0), line("drafted", "tok/s", 150.0), line("drafted over plain", "x", 1.5)]
    figures = [{"title": name, "lines": lines} for name in ("code, greedy", "chat, greedy")]
    (tmp_path / "runs.json").write_text(json.dumps(figures))
    chart = plots.workloads([tmp_path / "runs.json"])
    assert chart.names == ["code, greedy", "chat, greedy"]
    assert chart.series[1] == Series("drafted", [Point(0, 150.0, 149.0, 151.0), Point(1, 150.0, 149.0, 151.0)])
    assert len(chart.series) == 2


@pytest.mark.parametrize("plot", list(plots.PLOTS))
@pytest.mark.parametrize("content", [None, "{", "[1]", "{}", '{"a": 1}', "[]"])
def test_another_file_is_one_line(
    plot: str,
    content: str | None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    path = tmp_path / "file"
    if content is not None:
        path.write_text(content)
    assert draw(monkeypatch, plot, path, "-o", tmp_path / "out.svg") == 2
    said = capsys.readouterr().err
    assert said.startswith("error: ") and said.count("\n") == 1 and not (tmp_path / "out.svg").exists()
