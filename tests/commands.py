"""Tandem's commands run as processes of their own, installed or not, with their output and their last line."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

PATIENCE_S = 280


@dataclass(frozen=True, slots=True)
class Done:
    """How a process ended. `said` is the last line of its stderr."""

    code: int
    stdout: str
    stderr: str

    @property
    def said(self) -> str:
        return (self.stderr.strip().splitlines() or [""])[-1]


@dataclass(frozen=True, slots=True)
class Commands:
    """`state` is where the key lies that says what was built here."""

    state: Path

    def environment(self, **changes: str) -> dict[str, str]:
        path = os.pathsep.join(entry for entry in sys.path if entry)
        return {**os.environ, "PYTHONPATH": path, "XDG_STATE_HOME": str(self.state), **changes}

    def words(self, module: str, *arguments: str) -> list[str]:
        """The command whose `main` is in `tandem.<module>`."""
        code = f"import sys; from tandem.{module} import main; main()"
        return [sys.executable, "-P", "-c", code, *arguments]

    def run(self, module: str, *arguments: str, **changes: str) -> Done:
        return self.python(self.words(module, *arguments)[3], *arguments, **changes)

    def python(self, code: str, *arguments: str, **changes: str) -> Done:
        """`code` in a fresh process."""
        words = [sys.executable, "-P", "-c", code, *arguments]
        environment = self.environment(**changes)
        done = subprocess.run(words, capture_output=True, text=True, env=environment, timeout=PATIENCE_S)
        return Done(done.returncode, done.stdout, done.stderr)

    def output(self, module: str, *arguments: str, **changes: str) -> str:
        """stdout of a command that must end well."""
        done = self.run(module, *arguments, **changes)
        assert done.code == 0, done.stderr or done.stdout
        return done.stdout
