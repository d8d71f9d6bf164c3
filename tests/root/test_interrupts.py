"""Signals that strike while a child starts: nothing of the block is lost, and no child stays."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from tandem.compile.examine import converse
from tandem.interrupts import held_back
from tandem.kernels.build import build_library
from tests.kernels.harness import stand_in


def test_strikes_at_the_end_of_the_block() -> None:
    reached = False
    with pytest.raises(KeyboardInterrupt), held_back():
        signal.raise_signal(signal.SIGINT)
        reached = True
    assert reached
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_own_handlers_run_at_the_end_too(monkeypatch: pytest.MonkeyPatch) -> None:
    heard: list[int] = []
    before = signal.signal(signal.SIGTERM, lambda number, frame: heard.append(number))
    try:
        with held_back():
            signal.raise_signal(signal.SIGTERM)
            assert not heard
        assert heard == [signal.SIGTERM]
    finally:
        signal.signal(signal.SIGTERM, before)


def test_what_is_ignored_stays_ignored() -> None:
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with held_back():
            assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
            signal.raise_signal(signal.SIGINT)
    finally:
        signal.signal(signal.SIGINT, before)


def test_threads_may_enter() -> None:
    entered: list[bool] = []

    def enter() -> None:
        with held_back():
            entered.append(True)

    thread = threading.Thread(target=enter)
    thread.start()
    thread.join()
    assert entered == [True]


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Children, each of whose starts ends in a Ctrl-C before the parent knows of it."""
    pids: list[int] = []

    class Struck(subprocess.Popen):  # type: ignore[type-arg]
        def __init__(self, *args: Any, **options: Any) -> None:
            super().__init__(*args, **options)
            pids.append(self.pid)
            signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(subprocess, "Popen", Struck)
    return pids


def _gone(pid: int) -> bool:
    """Whether a child has ended and been waited for."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return False


def test_no_prover_stays(started: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "sleeper.py").write_text("import time\ntime.sleep(600)\n")
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    with pytest.raises(KeyboardInterrupt):
        converse("sleeper", {}, lambda step: None)
    assert len(started) == 1 and _gone(started[0])


def test_no_compiler_stays(started: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", str(stand_in(tmp_path / "c++", "exec sleep 600")))
    with pytest.raises(KeyboardInterrupt):
        build_library("x86-64-v2", tmp_path / "library.so")
    assert started and all(map(_gone, started))
