"""What it costs to have several answers to one prompt: n choices of one request, and n requests that share nothing.

Over HTTP, against `tandem-run` as a user starts it. Prints a table; the ratio is of runs that followed each other.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))  # PYTHONSAFEPATH leaves it out

from figure import Figure, Line
from over_http import parser, report
from server import Server, serving
from spread import Goal, Spread


def main() -> int:
    """Returns the exit code."""
    made = parser(__doc__, tokens=1, goal=2.0, wanted="how many times longer the requests must take than the choices")
    made.add_argument("--choices", type=int, default=4)
    made.add_argument("--prompt", type=int, default=1024, help="tokens of the prompt")
    return report(figures(made.parse_args()))


def figures(options: argparse.Namespace) -> Iterator[Figure]:
    with serving(options.bundle, "--drafter", "none", *options.flag) as server:
        yield choices(server, options)


def choices(server: Server, options: argparse.Namespace) -> Figure:
    """Milliseconds from the first request to the last token."""
    together, apart = list[float](), list[float]()
    for turn in range(options.repeats + 1):
        ids = [(turn * 31 + place * 7) % 997 + 20 for place in range(options.prompt)]
        body = {"prompt": ids, "max_tokens": options.tokens, "ignore_eos": True, "temperature": 1, "seed": turn}
        one, many = took_ms(server, [body | {"n": options.choices}]), took_ms(server, [body] * options.choices)
        if turn:  # the first warms up
            together.append(one)
            apart.append(many)
    one, many = Spread.of(together), Spread.of(apart)
    lines = [
        Line(f"{options.choices} choices of one request", one, "ms"),
        Line(f"{options.choices} requests at once", many, "ms"),
        Line("requests over choices", many.over(one), "x", Goal(options.goal, float(options.choices))),
    ]
    return Figure("choices", f"a prompt of {options.prompt} tokens, {options.tokens} of each answer", lines)


def took_ms(server: Server, bodies: list[dict[str, object]]) -> float:
    answers = [stream.wait() for stream in [server.stream("/v1/completions", body) for body in bodies]]
    return 1e3 * (max(each.end for each in answers) - min(each.asked for each in answers))


if __name__ == "__main__":
    sys.exit(main())
