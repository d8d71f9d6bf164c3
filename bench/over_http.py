"""What benchmarks over HTTP share: their flags, how figures are shown, and the rate of one answer.

Knows nothing of what is compared.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from answer import CommandError
from figure import Figure
from machine import describe
from server import Server

ROOT = Path(__file__).resolve().parent.parent


def parser(description: str | None, *, tokens: int, goal: float, wanted: str) -> argparse.ArgumentParser:
    """The flags that all have. `wanted` says what must reach `goal`."""
    made = argparse.ArgumentParser(description=description)
    add = made.add_argument
    add("--bundle", type=Path, default=ROOT / ".demo" / "smollm2-bf16")
    add("--tokens", type=int, default=tokens, help="of each answer")
    add("--repeats", type=int, default=5, help="turns that count, after one to warm up")
    add("--goal", type=float, default=goal, help=wanted)
    add("--flag", action="append", default=[], help="a further flag of tandem-run")
    return made


def report(figures: Iterable[Figure]) -> int:
    """Shows each figure as it comes. Returns the exit code: 1 if a goal is missed, 2 if a command fails."""
    print(describe())
    missed = False
    try:
        for figure in figures:
            print(f"\n{figure.text()}", flush=True)
            missed = missed or any(line.missed for line in figure.lines)
    except CommandError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return int(missed)


def rate(server: Server, path: str, body: dict[str, Any], tokens: int) -> float:
    """Tokens a second of an answer, from the request on. CommandError if it has not as many as wanted."""
    answer = server.stream(path, body | {"max_tokens": tokens}).wait()
    if answer.num_tokens != tokens:
        raise CommandError(f"an answer has {answer.num_tokens} tokens instead of {tokens}")
    return tokens / (answer.end - answer.asked)
