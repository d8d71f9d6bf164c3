"""What a JSON schema costs: tokens a second of an answer that must keep to one, over those of a free answer as long.

Over HTTP, against `tandem-run` as a user starts it, decoding plainly and with drafts. Prints tables; ratios are of runs
that followed each other.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))  # PYTHONSAFEPATH leaves it out

from answer import CommandError
from figure import Figure, Line
from machine import describe
from server import Server, serving
from spread import Goal, Spread

ROOT = Path(__file__).resolve().parent.parent
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
    options = parse()
    print(describe())
    missed = False
    try:
        for drafter, title in DRAFTERS.items():
            with serving(options.bundle, "--drafter", drafter, *options.flag) as server:
                figure = compared(server, title, options)
            print(f"\n{figure.text()}", flush=True)
            missed = missed or any(line.missed for line in figure.lines)
    except CommandError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return int(missed)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    add = parser.add_argument
    add("--bundle", type=Path, default=ROOT / ".demo" / "smollm2-bf16")
    add("--tokens", type=int, default=256, help="of each answer")
    add("--temperature", type=float, default=0.0)
    add("--repeats", type=int, default=5)
    add("--goal", type=float, default=0.85, help="what the answer under the schema must reach over the free one")
    add("--flag", action="append", default=[], help="a further flag of tandem-run")
    return parser.parse_args()


def compared(server: Server, title: str, options: argparse.Namespace) -> Figure:
    """Tokens a second from the request on, the grammar's compilation with it."""
    kept: dict[str, Any] = {"response_format": {"type": "json_schema", "json_schema": {"schema": SCHEMA}}}
    free: dict[str, Any] = {"ignore_eos": True}
    under, without = list[float](), list[float]()
    for turn in range(options.repeats + 1):
        words = f"List the places of a journey through country {turn + 1} as JSON."
        body = {"messages": [{"role": "user", "content": words}], "seed": turn, "temperature": options.temperature}
        off, on = (rate(server, body | form, options.tokens) for form in (free, kept))
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


def rate(server: Server, body: dict[str, Any], tokens: int) -> float:
    answer = server.stream("/v1/chat/completions", body | {"max_tokens": tokens}).wait()
    if answer.num_tokens != tokens:
        raise CommandError(f"an answer has {answer.num_tokens} tokens instead of {tokens}")
    return answer.num_tokens / (answer.end - answer.asked)


if __name__ == "__main__":
    sys.exit(main())
