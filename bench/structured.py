"""What a JSON schema costs: tokens a second of an answer that must keep to one, over those of a free answer as long.

Over HTTP, against `tandem-run` as a user starts it, decoding plainly and with drafts. Prints tables; ratios are of runs
that followed each other.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))  # PYTHONSAFEPATH leaves it out

from figure import Figure, Line
from over_http import parser, rate, report
from server import Server, serving
from spread import Goal, Spread

SCHEMA = {
    "type": "array",
    "minItems": 1000,  # no answer is done before it is cut
    "items": {
        "type": "object",
        "properties": {
            "name": {"type": "string", "maxLength": 40},
            "kind": {"enum": ["town", "village", "island", "mountain"]},
            "height": {"type": "integer", "minimum": 0, "maximum": 9000},
            "sights": {"type": "array", "items": {"type": "string", "maxLength": 60}, "maxItems": 3},
        },
        "required": ["name", "kind", "height", "sights"],
        "additionalProperties": False,
    },
}
DRAFTERS = {"none": "plain decoding", "lookup": "with drafts, each text its own"}


def main() -> int:
    """Returns the exit code."""
    made = parser(
        __doc__, tokens=256, goal=0.85, wanted="what the answer under the schema must reach over the free one"
    )
    made.add_argument("--temperature", type=float, default=0.0)
    return report(figures(made.parse_args()))


def figures(options: argparse.Namespace) -> Iterator[Figure]:
    for drafter, title in DRAFTERS.items():
        with serving(options.bundle, "--drafter", drafter, *options.flag) as server:
            figure = compared(server, title, options)
        yield figure


def compared(server: Server, title: str, options: argparse.Namespace) -> Figure:
    """Tokens a second from the request on, the grammar's compilation with it."""
    kept: dict[str, Any] = {"response_format": {"type": "json_schema", "json_schema": {"schema": SCHEMA}}}
    free: dict[str, Any] = {"ignore_eos": True}
    under, without = list[float](), list[float]()
    for turn in range(options.repeats + 1):
        words = f"List the places of a journey through country {turn + 1} as JSON."
        body = {"messages": [{"role": "user", "content": words}], "seed": turn, "temperature": options.temperature}
        off, on = (rate(server, "/v1/chat/completions", body | form, options.tokens) for form in (free, kept))
        if turn:  # the first warms up
            without.append(off)
            under.append(on)
    off_runs, on_runs = Spread.of(without), Spread.of(under)
    lines = [
        Line("free", off_runs, "tok/s"),
        Line("under a JSON schema", on_runs, "tok/s"),
        Line("ratio", on_runs.over(off_runs), "x", Goal(options.goal, 1.0)),
    ]
    return Figure("structured", title, lines)


if __name__ == "__main__":
    sys.exit(main())
