"""How fast bundles are on this CPU, beside peers and beside what the memory allows: interleaved, medians, ratios.

Every side decodes weights from the same checkpoint greedily on the same number of threads, from token ids. Prints
tables; --json writes all runs. Exits 1 if speculative ids differ from plain ones. `bench/peers.sh` installs the peers.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))  # PYTHONSAFEPATH leaves it out

import bundles
from answer import CommandError
from figure import Figure
from figures import decode, lookup, prefill, verify, whole
from figures.context import PROFILES, Context
from machine import describe
from sides.process import SideError
from sides.roster import Roster, cores
from smollm2 import FetchError, fetch

PER_PROFILE: dict[str, Callable[[Context, str], Figure]] = {
    "decode": decode.measure,
    "verify": verify.measure,
    "prefill": prefill.measure,
    "copy": lookup.copy,
    "edit": lookup.edit,
    "chat": lookup.chat,
    "code": lookup.code,
}
"""Figures that each profile has one of, by name."""
WHOLE: dict[str, Callable[[Context], Figure]] = {"start": whole.start, "compile": whole.compile_time}
"""Figures of the whole road."""
NAMES = [*(f"{name}-{profile}" for name in PER_PROFILE for profile in PROFILES), *WHOLE]


def main() -> int:
    """Returns the exit code."""
    options = parse()
    try:
        context = Context(Roster(find_bundles(options.bundle), options.peers, options.threads))
    except (FetchError, CommandError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    context.repeats, context.tokens = (1, 32) if options.quick else (options.repeats, options.tokens)
    found, failed = list[Figure](), False
    print(f"{describe()}, {options.threads} threads, {context.repeats} interleaved runs")
    for name in chosen(options.only, quick=options.quick):
        try:
            figure = measure(context, name)
        except (SideError, CommandError) as error:
            print(f"\n{name}: left out: {error}", flush=True)
            failed = True
            continue
        found.append(figure)
        print(f"\n{figure.text()}", flush=True)
        write(options, context, found)
    return 1 if failed or any(figure.identical is False for figure in found) else 0


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    add = parser.add_argument
    add("--bundle", type=Path, action="append", help="a bundle, one per profile; default: bundles made in .demo")
    add("--peers", type=Path, default=bundles.ROOT / ".peers", help="the folder of bench/peers.sh")
    add("--threads", type=int, default=cores())
    add("--repeats", type=int, default=5, help="turns that count, after one to warm up")
    add("--tokens", type=int, default=128, help="tokens of a run; those of lookup take two or three times as many")
    add("--quick", action="store_true", help="one short turn of each figure, to see that everything runs")
    add("--only", action="append", metavar="NAME", help=f"a figure or the first part of its name: {', '.join(NAMES)}")
    add("--json", type=Path, metavar="FILE", help="write every run there")
    add("--markdown", type=Path, metavar="FILE", help="write the tables there")
    return parser.parse_args()


def chosen(only: list[str] | None, *, quick: bool) -> list[str]:
    """Names of the figures to measure; a compile is not quick."""
    if only:
        unknown = [wanted for wanted in only if not any(name.startswith(wanted) for name in NAMES)]
        if unknown:
            sys.exit(f"error: there is no figure {unknown[0]}; there are {', '.join(NAMES)}")
        return [name for name in NAMES if any(name.startswith(wanted) for wanted in only)]
    return [name for name in NAMES if not (quick and name == "compile")]


def measure(context: Context, name: str) -> Figure:
    """One figure. SideError if our own side is not there, or a CommandError."""
    if name in WHOLE:
        return WHOLE[name](context)
    kind, _, profile = name.partition("-")
    if profile not in context.roster.bundles:
        raise SideError(f"there is no bundle of profile {profile}")
    return PER_PROFILE[kind](context, profile)


def find_bundles(given: list[Path] | None) -> dict[str, Path]:
    """Bundles by profile: those given, or those in .demo, compiled where they are missing or old."""
    if given:
        return {bundles.profile_of(path): path for path in given}
    return bundles.build_all(fetch(), PROFILES)


def write(options: argparse.Namespace, context: Context, found: list[Figure]) -> None:
    """What there is so far, so that an interrupted run leaves what it measured."""
    if options.markdown:
        options.markdown.write_text("\n".join(figure.markdown() for figure in found))
    if options.json:
        options.json.write_text(json.dumps(record(context, found), indent=1) + "\n")


def record(context: Context, figures: list[Figure]) -> dict:
    return {
        "machine": describe(),
        "date": time.strftime("%Y-%m-%d"),
        "threads": context.roster.threads,
        "repeats": context.repeats,
        "tokens": context.tokens,
        "versions": context.versions,
        "figures": [figure.record() for figure in figures],
    }


if __name__ == "__main__":
    sys.exit(main())
