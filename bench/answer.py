"""Tandem's commands, installed or not; and one answer of `tandem-run --json`, run as a user would, with its rates.

Knows nothing of how a bundle came to be.
"""

from __future__ import annotations

import json
import subprocess
import sys
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

MODULES = {
    "tandem-bundle": "artifacts.cli",
    "tandem-check": "runtime.checks.cli",
    "tandem-compile": "compile.cli",
    "tandem-run": "runtime.cli",
}
"""Where each command is, below `tandem`."""
PUTTING_AWAY_S = 30
"""How long a command that Ctrl-C was told to may take to remove what it has begun."""


class CommandError(Exception):
    """A command failed; the message is its own last line."""


@dataclass(frozen=True, slots=True)
class Answer:
    """Text and ids of a completion, with the engine's counts. The first token comes out of the prefill."""

    text: str
    ids: list[int]
    stats: dict[str, float]

    @property
    def tokens_per_second(self) -> float:
        return 1e3 * (len(self.ids) - 1) / self.stats["decode_ms"] if self.stats["decode_ms"] else 0.0

    @property
    def tokens_per_round(self) -> float:
        return (len(self.ids) - 1) / self.stats["rounds"] if self.stats["rounds"] else 0.0


def program(name: str) -> list[str]:
    """The words that start one of Tandem's commands: as installed beside this Python, else by its module."""
    if (installed := Path(sys.executable).parent / name).exists():
        return [str(installed)]
    # No current folder on its path: it holds packages under generic names.
    return [sys.executable, "-P", "-c", f"import sys; from tandem.{MODULES[name]} import main; sys.exit(main())"]


def command(name: str, *arguments: str | Path, quiet: bool = True) -> str:
    """stdout of one of Tandem's commands; its progress is shown unless `quiet`."""
    words = [*program(name), *map(str, arguments)]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE if quiet else None, text=True) as child:
        try:
            out, errors = child.communicate()
        except KeyboardInterrupt:
            with suppress(subprocess.TimeoutExpired):
                child.wait(PUTTING_AWAY_S)
            raise
        finally:
            child.kill()
    if child.returncode != 0:
        lines = (errors or "").strip().splitlines()
        raise CommandError(f"{name} exited with {child.returncode}" + (f": {lines[-1]}" if lines else ""))
    return out


def answer(
    bundle: Path, prompt: str, *, drafter: str, max_tokens: int, raw: bool = False, threads: int | None = None
) -> Answer:
    """Complete `prompt` greedily (as a chat turn unless `raw`) in a fresh process."""
    flags = ["--drafter", drafter, "--max-tokens", str(max_tokens), "--json"]
    flags += ["--raw"] if raw else []
    flags += ["--threads", str(threads)] if threads else []
    found = json.loads(command("tandem-run", bundle, "--prompt", prompt, *flags))
    return Answer(found["text"], found["ids"], found["stats"])


def begun_again(num_lines: int = 4) -> str:
    """A copy-heavy prompt: a source file, then the first lines of the same file."""
    source = Path(__file__).with_name("copied.txt").read_text()
    again = "".join(source.splitlines(keepends=True)[:num_lines])
    # A prompt that ended in whitespace would break a token that the model has only seen whole.
    return f"{source}\n\n{again.rstrip()}"
