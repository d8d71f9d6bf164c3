"""The parent's half: a side as a child process that is stopped whenever it is not its turn.

A stopped side burns no core, so that every side keeps its own way of waiting for work while it runs.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import tempfile
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

from machine import Watch

BENCH = Path(__file__).resolve().parent.parent
DISTURBED = 0.15
"""Cores that other programs took during a run; above it, the run counts as disturbed."""


class SideError(Exception):
    """A side cannot take part; the message is one line."""


@dataclass(frozen=True, slots=True)
class Run:
    """One generation. `foreign` is how many cores all other processes took meanwhile; `rounds` is 0 if unknown."""

    ids: list[int]
    prefill_ms: float
    decode_ms: float
    rounds: int
    foreign: float

    @property
    def rate(self) -> float:
        """Tokens a second of the decoding; the first token is the prefill's."""
        return 1e3 * (len(self.ids) - 1) / self.decode_ms

    @property
    def tokens_per_round(self) -> float:
        return (len(self.ids) - 1) / self.rounds if self.rounds else 1.0


class Side:
    """A running child named `name`; `versions` is what it says of itself. Close it, or use it in a `with` block."""

    def __init__(self, name: str, python: Path, module: str, *arguments: str | Path, **variables: str) -> None:
        self.name = name
        # No current folder on the child's path: it holds packages under generic names.
        env = environment() | variables
        words = [str(python), "-m", module, *map(str, arguments)]
        self._said = tempfile.TemporaryFile("w+")  # noqa: SIM115  (a pipe could fill and block the child)
        self._child = subprocess.Popen(
            words,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._said,
            text=True,
            env=env,
            start_new_session=True,
        )
        self.runs: list[Run] = []
        self.versions: str = self._read()["ready"]
        self._signal(signal.SIGSTOP)

    def run(self, ids: list[int], num_tokens: int, **more: Any) -> Run:
        """One greedy generation of `num_tokens` after `ids`; kept in `runs` as well."""
        assert self._child.stdin is not None
        watch = Watch(self._child.pid)
        self._signal(signal.SIGCONT)
        try:
            self._child.stdin.write(json.dumps({"ids": ids, "num_tokens": num_tokens, **more}) + "\n")
            self._child.stdin.flush()
        except BrokenPipeError:
            raise self._ended() from None
        found = self._read()
        self._signal(signal.SIGSTOP)
        foreign = watch.foreign_cores()
        run = Run(found["ids"], found["prefill_ms"], found["decode_ms"], found.get("rounds", 0), foreign)
        self.runs.append(run)
        return run

    def _read(self) -> dict[str, Any]:
        assert self._child.stdout is not None
        line = self._child.stdout.readline()
        if not line:
            raise self._ended()
        return json.loads(line)

    def _ended(self) -> SideError:
        """What the child said last, as an error."""
        self._end()
        self._said.seek(0)
        lines = self._said.read().strip().splitlines()
        self.close()
        return SideError(f"{self.name}: {lines[-1] if lines else 'ended without a word'}")

    def _signal(self, number: int) -> None:
        if self._child.poll() is None:  # else its number may be another's by now
            os.killpg(self._child.pid, number)

    def _end(self) -> None:
        self._signal(signal.SIGKILL)
        self._child.wait()

    def close(self) -> None:
        self._end()
        for file in (self._child.stdin, self._child.stdout, self._said):
            with suppress(BrokenPipeError):  # a request that nobody will read
                file.close()  # type: ignore[union-attr]

    def __enter__(self) -> Side:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self.close()


def environment() -> dict[str, str]:
    """This process's, with the benchmark's modules, and not those of the folder it runs in, to import."""
    paths = [str(BENCH), *filter(None, [os.environ.get("PYTHONPATH")])]
    return os.environ | {"PYTHONPATH": os.pathsep.join(paths), "PYTHONSAFEPATH": "1"}


def disturbance(sides: list[Side]) -> str:
    """A line about runs during which other programs took processor time; empty if there were none."""
    runs = [run for side in sides for run in side.runs]
    disturbed = [run.foreign for run in runs if run.foreign > DISTURBED]
    if not disturbed:
        return ""
    return f"disturbed: {len(disturbed)} of {len(runs)} runs, other programs took up to {max(disturbed):.1f} cores"
