"""One bundle at a time, children that say why they failed, and an end to what takes too long."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from bench.gpu import context as module
from bench.gpu.context import Context, Missing, child, environment, time_limit
from tests.fakes import ScriptedExecutor


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[ScriptedExecutor]:
    """Executors in the order they were opened."""
    made: list[ScriptedExecutor] = []

    def open_(path: Path, context: int) -> tuple[str, ScriptedExecutor]:
        made.append(ScriptedExecutor())
        return f"bundle {path}", made[-1]

    monkeypatch.setattr(module, "opened", open_)
    return made


def test_a_bundle_stays_open_until_another_is_wanted(opened: list[ScriptedExecutor]) -> None:
    context = Context({"smollm2": Path("a"), "dense27b": Path("b")}, repeats=1, layers=2)
    assert context.open("smollm2") is context.open("smollm2")
    assert context.open("dense27b").shape.num_hidden_layers == 2
    assert [executor.closed for executor in opened] == [True, False]
    context.close()
    assert opened[1].closed


def test_a_bundle_that_was_not_given_is_asked_for(opened: list[ScriptedExecutor]) -> None:
    with pytest.raises(Missing, match="--dense27b"):
        Context({}, repeats=1).open("dense27b")


def test_after_a_failure_the_bundle_is_opened_anew(opened: list[ScriptedExecutor]) -> None:
    context = Context({"smollm2": Path("a")}, repeats=1)
    context.open("smollm2")

    def broken() -> None:
        raise RuntimeError("the device is gone")

    opened[0].close = broken  # type: ignore[method-assign]
    context.abandon()
    context.open("smollm2")
    assert len(opened) == 2


def test_what_takes_too_long_is_ended() -> None:
    with pytest.raises(TimeoutError, match="more than 0 s"), time_limit(0.05):
        time.sleep(5)
    with time_limit(5):
        pass
    time.sleep(0.01)  # and the clock is off


@pytest.fixture
def importable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path


def test_a_child_gives_the_object_it_printed_last(importable: Path) -> None:
    (importable / "speaking.py").write_text(
        "import sys\nprint('loading')\nprint('{\"given\": \"%s\"}' % sys.argv[1])\n"
    )
    assert child("speaking", "x") == {"given": "x"}


def test_a_child_that_fails_is_quoted(importable: Path) -> None:
    (importable / "failing.py").write_text("import sys\nsys.exit('out of memory')\n")
    with pytest.raises(Missing, match="failing exited with 1: out of memory"):
        child("failing")


def test_children_choose_by_themselves_how_modules_load(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_MODULE_LOADING", "EAGER")
    assert "CUDA_MODULE_LOADING" not in environment()
    assert environment()["PATH"] == os.environ["PATH"]
