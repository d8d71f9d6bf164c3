"""How to spend a round: policies and widths beside each other, all of them committing one and the same text.

The text is the plain answer of the bundle, since drafts never change one; what differs is the time. Each policy keeps
its router for the whole run, so what one workload teaches the next one finds. Prints a table a workload; exits 1 if an
id differs.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))  # PYTHONSAFEPATH leaves it out

import bundles
from answer import CommandError
from figure import Figure
from figures.context import Context
from figures.ways import PLAIN, Way, measure
from machine import describe
from sides.process import SideError
from sides.roster import Roster, cores
from workloads import WORKLOADS, prompts_of

POLICIES = ("staircut", "length", "budget", "fixed:8", "fixed:16")


def main() -> int:
    """Returns the exit code."""
    options = parse()
    profile = bundles.profile_of(options.bundle)
    context = Context(Roster({profile: options.bundle}, Path(), options.threads), options.repeats, options.tokens)
    more = dict(word.partition("=")[::2] for word in options.option)
    ways = [PLAIN, *(Way(policy, options={"router": policy, **more}) for policy in options.policy or POLICIES)]
    print(f"{describe()}, {options.threads} threads, {options.repeats} interleaved runs")
    found = list[Figure]()
    try:
        for workload in options.only or WORKLOADS:
            figure = Figure(workload, f"{workload}, one text under every policy")
            prompts = prompts_of(workload, context.prompts, options.context)
            measure(context, profile, figure, prompts, ways, WORKLOADS[workload] * options.tokens)
            print(f"\n{figure.text()}", flush=True)
            found.append(figure)
            if options.json:
                options.json.write_text(json.dumps([figure.record() for figure in found], indent=1) + "\n")
    except (CommandError, SideError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return int(any(figure.identical is False for figure in found))


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    add = parser.add_argument
    add("--bundle", type=Path, default=bundles.place("bf16"))
    add("--only", action="append", choices=WORKLOADS, help="a workload; default: all")
    add("--policy", action="append", help=f"a value of tandem-run's --router; default: {', '.join(POLICIES)}")
    add("--context", type=int, default=0, help="tokens of foreign text before each prompt")
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


if __name__ == "__main__":
    sys.exit(main())
