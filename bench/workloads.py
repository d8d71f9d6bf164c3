"""What drafts gain, by workload and context: prose, chat, code, edit and quote, greedily and at temperature 0.7.

Drafted answers follow plain ones of the same bundle, and have the same ids: seeds are fixed. With --context every other
prompt of a workload stands behind text that has nothing to do with it. Prints tables, and a line for what could not be
taken; exits 2 then, and 1 if an id differs or a workload is slower than plain.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from math import inf
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))  # PYTHONSAFEPATH leaves it out

import bundles
from answer import CommandError
from figure import Figure
from figures.context import Context
from figures.ways import PLAIN, Way, measure
from machine import describe
from prompts import Prompt, Prompts
from sides.process import SideError
from sides.roster import Roster, cores
from spread import Goal
from tandem.errors import TandemError
from unseen import python_files

WORKLOADS = {"prose": 2, "chat": 2, "code": 2, "edit": 3, "quote": 2}
"""How many times the usual tokens an answer may have."""
GOALS = {"quote": Goal(2.5, 4.0)}
GPU_GOALS = {"code": Goal(1.3, 2.0)}
"""Of SmolLM2 with its block drafter."""
NEVER_SLOWER = Goal(0.98, 1.0)
MANNERS = {"greedy": {}, "temperature 0.7": {"temperature": 0.7, "seed": 7}}


def main() -> int:
    """Returns the exit code."""
    options = parse()
    found, left_out, began = list[Figure](), False, time.perf_counter()
    try:
        taken = list(cells(options))
    except TandemError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    print(f"{describe()}, {options.threads} threads, {options.repeats} interleaved runs")
    for title, take in taken:
        try:
            if time.perf_counter() - began > options.budget:
                raise CommandError(f"no time is left of {options.budget:g} s")
            found.append(take())
        except (CommandError, SideError) as error:
            print(f"\n{title}: left out: {error}", flush=True)
            left_out = True
            continue
        print(f"\n{found[-1].text()}", flush=True)
        if options.json:
            options.json.write_text(json.dumps([figure.record() for figure in found], indent=1) + "\n")
    print("\n".join(["", *(f"{each.title:<44}{line.text()}" for each in found for line in each.lines if line.goal)]))
    missed = any(figure.identical is False or any(line.missed for line in figure.lines) for figure in found)
    return 2 if left_out else int(missed)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    add = parser.add_argument
    add("--bundle", type=Path, default=bundles.place("bf16"))
    add("--only", action="append", choices=WORKLOADS, help="a workload; default: all")
    add("--manner", action="append", choices=MANNERS, help="how tokens are chosen; default: both")
    add("--context", type=int, action="append", help="tokens of foreign text before each prompt; default: none")
    add(
        "--option",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="a field of LoadOptions, such as drafter=mtp",
    )
    add("--tokens", type=int, default=128, help="of an answer; longer for edits and quotations")
    add("--repeats", type=int, default=5, help="turns that count, after one to warm up")
    add("--threads", type=int, default=cores())
    add("--budget", type=float, default=inf, metavar="SECONDS", help="figures that would begin later are left out")
    add("--json", type=Path, metavar="FILE", help="write every run there")
    return parser.parse_args()


def cells(options: argparse.Namespace) -> Iterator[tuple[str, Callable[[], Figure]]]:
    """The title of each workload, context and manner, and what takes its figure."""
    profile = bundles.profile_of(options.bundle)
    context = Context(Roster({profile: options.bundle}, Path(), options.threads), options.repeats, options.tokens)
    loading = dict(word.partition("=")[::2] for word in options.option)
    ways = (PLAIN, Way("drafted", options=loading))
    goals = GOALS | (GPU_GOALS if bundles.on_gpu(options.bundle) else {})
    for behind in options.context or [0]:
        for workload in options.only or WORKLOADS:
            prompts = prompts_of(workload, context.prompts, behind)
            for manner in options.manner or MANNERS:
                title = f"{workload}, {manner}" + (f", behind {behind} tokens" if behind else "")
                goal = goals.get(workload, NEVER_SLOWER) if manner == "greedy" and not behind else NEVER_SLOWER
                tokens = WORKLOADS[workload] * options.tokens
                figure = Figure(workload, title)
                yield title, partial(measure, context, profile, figure, prompts, ways, tokens, goal, **MANNERS[manner])


def prompts_of(workload: str, prompts: Prompts, behind: int) -> list[Prompt]:
    """A workload's prompts, or every other one of them behind `behind` tokens of foreign text."""
    of = {"prose": prompts.prose, "chat": prompts.chats, "code": prompts.code, "edit": prompts.edits}
    found = of[workload]() if workload in of else [prompts.copy()]
    if not behind:
        return found
    files = python_files()
    return [prompts.behind(prompt, behind, files) for prompt in found[::2]]


if __name__ == "__main__":
    sys.exit(main())
