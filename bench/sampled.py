"""What sampling costs: tokens a second of sampled answers beside greedy ones of the same length, one at a time.

Over HTTP, against `tandem-run` as a user starts it, without drafts and with them. Prints tables; ratios are of runs
that followed each other. Without drafts a ratio is what the sampler costs; with them it also tells how much more a
greedy text repeats itself.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))  # PYTHONSAFEPATH leaves it out

from answer import CommandError
from figure import Figure, Line
from machine import describe
from server import Server, serving
from spread import Goal, Spread

ROOT = Path(__file__).resolve().parent.parent
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


def main() -> int:
    """Returns the exit code."""
    options = parse()
    print(describe())
    missed = False
    try:
        for drafter in ("none", "lookup"):
            with serving(options.bundle, "--drafter", drafter, *options.flag) as server:
                goal = Goal(options.goal, 0.97) if drafter == "none" else None
                figure = measure(server, drafter, options, goal)
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
    add("--repeats", type=int, default=5, help="turns that count, after one to warm up")
    add("--goal", type=float, default=0.9, help=f"what '{HELD}' must reach of greedy, without drafts")
    add("--flag", action="append", default=[], help="a further flag of tandem-run")
    return parser.parse_args()


def measure(server: Server, drafter: str, options: argparse.Namespace, goal: Goal | None) -> Figure:
    """All manners in turn, and each over the greedy run of its turn."""
    runs: dict[str, list[float]] = {name: [] for name in MANNERS}
    for turn in range(options.repeats + 1):
        for name, fields in MANNERS.items():
            found = rate(server, fields | {"seed": turn}, options.tokens)
            if turn:
                runs[name].append(found)
    spreads = {name: Spread.of(found) for name, found in runs.items()}
    lines = [Line(name, spread, "tok/s") for name, spread in spreads.items()]
    for name, spread in list(spreads.items())[1:]:
        lines.append(Line(f"{name}: over greedy", spread.over(spreads["greedy"]), "x", goal if name == HELD else None))
    return Figure(f"sampled-{drafter}", f"answers of {options.tokens} tokens, drafter {drafter}", lines)


def rate(server: Server, fields: dict[str, float], tokens: int) -> float:
    """Tokens a second from the request to the last token."""
    body = {"prompt": "In the beginning", "max_tokens": tokens, "ignore_eos": True, **fields}
    began = time.perf_counter()
    answer = server.stream("/v1/completions", body).wait()
    if answer.num_tokens != tokens:
        raise CommandError(f"an answer has {answer.num_tokens} tokens, not {tokens}")
    return tokens / (answer.end - began)


if __name__ == "__main__":
    sys.exit(main())
