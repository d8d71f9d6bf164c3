"""What it costs to serve several requests at once: tokens a second of 1 and of N lanes, and the wait for a first token.

Over HTTP, against `tandem-run` as a user starts it. Prints tables; ratios are of runs that followed each other.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))  # PYTHONSAFEPATH leaves it out

from answer import CommandError
from figure import Figure, Line
from over_http import parser, report
from server import Server, serving
from spread import Goal, Spread

SHORT = "Tell me a story."
"""About 30 tokens once SmolLM2's chat template stands around it."""
AHEAD_S = 0.3
"""How long the long prompt has been prefilling when the short one comes."""


def main() -> int:
    """Returns the exit code."""
    made = parser(__doc__, tokens=128, goal=1.6, wanted="what N lanes must reach over 1")
    made.add_argument("--lanes", type=int, default=4)
    made.add_argument("--long", type=int, default=4096, help="tokens of the prompt that others wait beside")
    return report(figures(made.parse_args()))


def figures(options: argparse.Namespace) -> Iterator[Figure]:
    with serving(options.bundle, "--drafter", "none", *options.flag) as server:
        yield lanes(server, options)
        yield first_token(server, options)


def lanes(server: Server, options: argparse.Namespace) -> Figure:
    """Tokens a second of all requests together, one at a time and at once."""
    alone, together = list[float](), list[float]()
    for turn in range(options.repeats + 1):
        bodies = [answer_body(turn, i, options.tokens) for i in range(options.lanes)]
        one, many = joint_rate(server, bodies[:1]), joint_rate(server, bodies)
        if turn:  # the first warms up
            alone.append(one)
            together.append(many)
    one, many = Spread.of(alone), Spread.of(together)
    name = f"{options.lanes} lanes"
    ratio = Line(f"{name} over 1", many.over(one), "x", Goal(options.goal, options.goal * 2))
    return Figure(
        "lanes",
        "plain decoding, all requests together",
        [Line("1 lane", one, "tok/s"), Line(name, many, "tok/s"), ratio],
    )


def answer_body(turn: int, lane: int, tokens: int) -> dict[str, object]:
    prompt = f"Chapter {turn + 1}, part {lane + 1}. In the beginning"
    return {"prompt": prompt, "max_tokens": tokens, "ignore_eos": True}


def joint_rate(server: Server, bodies: list[dict[str, object]]) -> float:
    """Tokens a second from the first request to the last token."""
    began = time.perf_counter()
    answers = [stream.wait() for stream in [server.stream("/v1/completions", body) for body in bodies]]
    return sum(each.num_tokens for each in answers) / (max(each.end for each in answers) - began)


def first_token(server: Server, options: argparse.Namespace) -> Figure:
    """Milliseconds to a short prompt's first token, alone and while a long one prefills."""
    idle, beside = list[float](), list[float]()
    for turn in range(options.repeats + 1):
        alone = wait_ms(server, turn)
        # Each long prompt is new to the server, and prefills for seconds.
        ids = [(turn * 31 + place * 7) % 997 + 20 for place in range(options.long)]
        long = server.stream("/v1/completions", {"prompt": ids, "max_tokens": 1})
        time.sleep(AHEAD_S)
        between = wait_ms(server, turn + 100)
        overlapped = not long.first
        long.wait()
        if not overlapped:
            raise CommandError("the long prompt was in before the short one came; give --long more")
        if turn:
            idle.append(alone)
            beside.append(between)
    one, other = Spread.of(idle), Spread.of(beside)
    lines = [
        Line("idle", one, "ms"),
        Line(f"while {options.long} tokens prefill", other, "ms"),
        Line("ratio", other.over(one), "x", Goal(3.0, 2.0)),
    ]
    return Figure("first-token", "time to the first token of a short chat", lines)


def wait_ms(server: Server, seed: int) -> float:
    body = {"messages": [{"role": "user", "content": SHORT}], "max_tokens": 2, "seed": seed, "ignore_eos": True}
    answer = server.stream("/v1/chat/completions", body).wait()
    return 1e3 * (answer.first - answer.asked)


if __name__ == "__main__":
    sys.exit(main())
