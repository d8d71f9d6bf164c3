"""Cells of workloads: one that fails says so in a line, and no other is left out for that."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import workloads
from figure import Figure, Line
from sides.process import SideError
from spread import Goal, Spread
from tests.bundles import compiled


def figure(title: str, ratio: float) -> Figure:
    line = Line("drafted over plain", Spread.of([ratio]), "x", Goal(0.98, 1.0))
    return Figure(title.partition(",")[0], title, [line], identical=True)


def run(monkeypatch: pytest.MonkeyPatch, cells: dict[str, float | str], *words: str) -> int:
    def taken(options: object) -> Iterator[tuple[str, Callable[[], Figure]]]:
        for title, found in cells.items():

            def take(title: str = title, found: float | str = found) -> Figure:
                if isinstance(found, str):
                    raise SideError(found)
                return figure(title, found)

            yield title, take

    monkeypatch.setattr(workloads, "cells", taken)
    monkeypatch.setattr(sys, "argv", ["workloads.py", *words])
    return workloads.main()


def test_a_cell_that_fails_stops_no_other(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    found = {"code, greedy": 1.5, "chat, greedy": "the device is gone", "edit, greedy": 2.0}
    assert run(monkeypatch, found, "--json", str(tmp_path / "x")) == 2
    said = capsys.readouterr().out
    assert "\nchat, greedy: left out: the device is gone\n" in said
    assert "edit: edit, greedy" in said and (tmp_path / "x").read_text().count('"title"') == 2
    summary = said.strip().splitlines()[-2:]
    assert [line.split()[0] for line in summary] == ["code,", "edit,"]
    assert all("aim reached" in line for line in summary)


@pytest.mark.parametrize(("ratio", "code"), [(1.2, 0), (0.9, 1)])
def test_a_cell_slower_than_plain_is_told_by_the_exit_code(
    monkeypatch: pytest.MonkeyPatch, ratio: float, code: int
) -> None:
    assert run(monkeypatch, {"code, greedy": ratio}) == code


def test_what_there_is_no_time_for_is_left_out(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(monkeypatch, {"code, greedy": 1.5}, "--budget", "-1") == 2
    assert "code, greedy: left out: no time is left" in capsys.readouterr().out


def test_a_bundle_that_is_not_there_is_an_error(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setattr(sys, "argv", ["workloads.py", "--bundle", str(tmp_path / "none")])
    assert workloads.main() == 2
    assert "nothing there" in capsys.readouterr().err


def test_every_workload_context_and_manner_is_a_cell(monkeypatch: pytest.MonkeyPatch) -> None:
    bundle = str(compiled("qwen3_5", "fp32"))
    monkeypatch.setattr(workloads, "prompts_of", lambda workload, prompts, behind: [])
    monkeypatch.setattr(sys, "argv", ["workloads.py", "--bundle", bundle, "--context", "0", "--context", "50"])
    titles = [title for title, _ in workloads.cells(workloads.parse())]
    assert len(set(titles)) == len(titles) == 2 * 2 * len(workloads.WORKLOADS)
    assert "code, temperature 0.7, behind 50 tokens" in titles
