"""What sampling costs: tokens a second of sampled answers beside greedy ones of the same length, one at a time.

Over HTTP, against `tandem-run` as a user starts it, without drafts and with them. Prints tables; ratios are of runs
that followed each other. Without drafts a ratio is what the sampler costs; with them it also tells how much more a
greedy text repeats itself.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))  # PYTHONSAFEPATH leaves it out

from figure import Figure, Line
from over_http import parser, rate, report
from server import Server, serving
from spread import Goal, Spread

PENALTIES = {"presence_penalty": 0.5, "frequency_penalty": 0.5, "repetition_penalty": 1.1}
MANNERS: dict[str, dict[str, float]] = {
    "greedy": {},
    "greedy, penalties": PENALTIES,
    "temperature 0.7": {"temperature": 0.7},
    "temperature 0.7, top_k 20, top_p 0.95": {"temperature": 0.7, "top_k": 20, "top_p": 0.95},
    "temperature 0.7, top_p 0.95, penalties": {"temperature": 0.7, "top_p": 0.95, **PENALTIES},
}
HELD = "temperature 0.7, top_p 0.95, penalties"
"""The manner that has a goal."""
TEXT = {"prompt": "In the beginning", "ignore_eos": True}


def main() -> int:
    """Returns the exit code."""
    wanted = f"what '{HELD}' must reach of greedy, without drafts"
    return report(figures(parser(__doc__, tokens=256, goal=0.9, wanted=wanted).parse_args()))


def figures(options: argparse.Namespace) -> Iterator[Figure]:
    for drafter in ("none", "lookup"):
        with serving(options.bundle, "--drafter", drafter, *options.flag) as server:
            goal = Goal(options.goal, 0.97) if drafter == "none" else None
            figure = measure(server, drafter, options, goal)
        yield figure


def measure(server: Server, drafter: str, options: argparse.Namespace, goal: Goal | None) -> Figure:
    """All manners in turn, and each over the greedy run of its turn."""
    runs: dict[str, list[float]] = {name: [] for name in MANNERS}
    for turn in range(options.repeats + 1):
        for name, fields in MANNERS.items():
            found = rate(server, "/v1/completions", TEXT | fields | {"seed": turn}, options.tokens)
            if turn:
                runs[name].append(found)
    spreads = {name: Spread.of(found) for name, found in runs.items()}
    lines = [Line(name, spread, "tok/s") for name, spread in spreads.items()]
    for name, spread in list(spreads.items())[1:]:
        lines.append(Line(f"{name}: over greedy", spread.over(spreads["greedy"]), "x", goal if name == HELD else None))
    return Figure(f"sampled-{drafter}", f"answers of {options.tokens} tokens, drafter {drafter}", lines)


if __name__ == "__main__":
    sys.exit(main())
