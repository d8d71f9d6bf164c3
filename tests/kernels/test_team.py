"""The thread team: barriers hold, teams are independent, and threads end with their team."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from tandem.runtime.executor.library import Library
from tests.kernels.harness import Call, Program, assert_bits, library, normal

ROWS, WIDTH, STEPS = 13, 40, 12


class Relay:
    """Every step gathers rows in a new order and adds: each needs all rows of the step before, of every thread."""

    def __init__(self, seed: int = 0) -> None:
        rng = np.random.default_rng(seed)
        self.start, self.x = normal(ROWS, WIDTH, seed=seed), np.empty((ROWS, WIDTH), np.float32)
        self.picked, self.orders = np.empty_like(self.x), [rng.permutation(ROWS).astype(np.int32) for _ in range(STEPS)]

    def calls(self) -> list[Call]:
        out: list[Call] = []
        rows = {"count": ROWS, "x": self.x, "x_stride": WIDTH, "y_stride": WIDTH, "width": WIDTH}
        for order in self.orders:
            out.append(("gather_rows", {**rows, "row": order, "y": self.picked}))
            out.append(("add", {**rows, "z": self.picked, "z_stride": WIDTH, "y": self.x}))
        return out

    def expected(self) -> np.ndarray:
        x = self.start.copy()
        for order in self.orders:
            x = x + x[order]
        return x


def repeat(relay: Relay, program: Program, times: int) -> None:
    wanted = relay.expected()
    for _ in range(times):
        relay.x[:], relay.picked[:] = relay.start, np.nan
        program.run()
        assert_bits(relay.x, wanted)


@pytest.fixture
def path() -> Path:
    return library()


@pytest.mark.parametrize("threads", (1, 2, 3, 4))
def test_launches_wait_for_each_other(path: Path, threads: int) -> None:
    team, relay = Library(path, threads), Relay()
    repeat(relay, Program(path, team, relay.calls()), 200)
    team.close()


@pytest.mark.parametrize("threads", (1, 2, 4))
def test_independent_launches_need_no_barrier(path: Path, threads: int) -> None:
    team, x = Library(path, threads), normal(ROWS, WIDTH)
    out = [np.empty_like(x) for _ in range(8)]
    rows = {"count": ROWS, "x": x, "x_stride": WIDTH, "z": x, "z_stride": WIDTH, "y_stride": WIDTH, "width": WIDTH}
    calls: list[Call] = [("add", {**rows, "y": y}) for y in out]
    program = Program(path, team, calls, waits=[False] * len(calls))
    for _ in range(50):
        for y in out:
            y[:] = np.nan
        program.run()
        # The end of a run is a barrier of its own: everything is there.
        for y in out:
            assert_bits(y, x + x)
    team.close()


def test_more_threads_than_work(path: Path) -> None:
    team, x, y = Library(path, 7), normal(1, 3), np.full((1, 3), np.nan, np.float32)
    arguments = {"count": 1, "x": x, "x_stride": 3, "row": np.zeros(1, np.int32), "y": y, "y_stride": 3, "width": 3}
    Program(path, team, [("gather_rows", arguments)]).run()
    assert_bits(y, x)
    team.close()


def test_an_empty_list_runs_to_its_end(path: Path) -> None:
    team = Library(path, 3)
    for _ in range(20):
        team.run(0, 0)
    team.close()


def test_two_teams_at_once(path: Path) -> None:
    relays, failed = [Relay(1), Relay(2)], list[BaseException]()
    teams = [Library(path, 2), Library(path, 2)]

    def work(relay: Relay, team: Library) -> None:
        try:
            repeat(relay, Program(path, team, relay.calls()), 100)
        except BaseException as error:
            failed.append(error)

    workers = [threading.Thread(target=work, args=pair) for pair in zip(relays, teams, strict=True)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    for team in teams:
        team.close()
    assert failed == []


def tasks() -> set[str]:
    return set(os.listdir("/proc/self/task"))


def await_end(ids: set[str]) -> bool:
    """Whether the threads vanish: the kernel may list one for a moment after it was joined."""
    for _ in range(1000):
        if not ids & tasks():
            return True
        time.sleep(0.01)
    return False


@pytest.mark.skipif(not os.path.isdir("/proc/self/task"), reason="finds threads in /proc")
def test_threads_end_with_their_team(path: Path) -> None:
    for threads in (1, 2, 5):
        for ran in (False, True):
            before = tasks()
            team = Library(path, threads)
            own = tasks() - before
            assert len(own) == threads - 1
            if ran:
                relay = Relay()
                repeat(relay, Program(path, team, relay.calls()), 2)
            team.close()
            team.close()  # a second time is no fault
            assert await_end(own)
