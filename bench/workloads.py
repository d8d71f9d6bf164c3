"""What drafts gain, by workload and context: prose, chat, code, edit and quote, greedily and at temperature 0.7.

Drafted answers follow plain ones of the same bundle, and have the same ids: seeds are fixed. With --context every other
prompt of a workload stands behind text that has nothing to do with it. Prints tables; exits 1 if an id differs or a
workload is slower than plain.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
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
from unseen import python_files

WORKLOADS = {"prose": 2, "chat": 2, "code": 2, "edit": 3, "quote": 2}
"""How many times the usual tokens an answer may have."""
GOALS = {"quote": Goal(2.5, 4.0)}
NEVER_SLOWER = Goal(0.98, 1.0)
MANNERS = {"greedy": {}, "temperature 0.7": {"temperature": 0.7, "seed": 7}}


def main() -> int:
    """Returns the exit code."""
    options = parse()
    found, failed = list[Figure](), False
    print(f"{describe()}, {options.threads} threads, {options.repeats} interleaved runs")
    try:
        for figure in figures(options):
            print(f"\n{figure.text()}", flush=True)
            found.append(figure)
            failed = failed or figure.identical is False or any(line.missed for line in figure.lines)
            if options.json:
                options.json.write_text(json.dumps([figure.record() for figure in found], indent=1) + "\n")
    except (CommandError, SideError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return int(failed)


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
    add("--json", type=Path, metavar="FILE", help="write every run there")
    return parser.parse_args()


def figures(options: argparse.Namespace) -> Iterator[Figure]:
    """One of each workload, context and manner."""
    profile = bundles.profile_of(options.bundle)
    context = Context(Roster({profile: options.bundle}, Path(), options.threads), options.repeats, options.tokens)
    loading = dict(word.partition("=")[::2] for word in options.option)
    ways = (PLAIN, Way("drafted", options=loading))
    for behind in options.context or [0]:
        for workload in options.only or WORKLOADS:
            prompts = prompts_of(workload, context.prompts, behind)
            for manner in options.manner or MANNERS:
                name = f"{workload}, {manner}" + (f", behind {behind} tokens" if behind else "")
                goal = GOALS.get(workload, NEVER_SLOWER) if manner == "greedy" and not behind else NEVER_SLOWER
                num_tokens = WORKLOADS[workload] * options.tokens
                yield measure(
                    context, profile, Figure(workload, name), prompts, ways, num_tokens, goal, **MANNERS[manner]
                )


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
