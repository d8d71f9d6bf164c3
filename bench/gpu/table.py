"""`python3 -m bench.gpu.table`: the figures of a CUDA bundle on this GPU, each by itself, and their table last.

A figure that fails or takes too long says so in a line and does not stop the others. Exits 1 if one of ours was left
out, missed what it must reach, or changed an id.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import bench.gpu  # noqa: F401, makes figure and spread importable
from bench.gpu.context import Context, Missing, time_limit
from bench.gpu.figures import decode, forced, passes, process, recurrence, replay, sampled
from bench.gpu.figures.contexts import LONG, SHORT
from bench.gpu.shapes import HYBRID27B, SHAPES
from figure import Figure
from tandem.errors import TandemError

HYBRID = HYBRID27B.name
Measure = Callable[[Context], Figure]
FIGURES: dict[str, Measure] = {
    "decode-smollm2": partial(decode.decode, name="smollm2"),
    "gap-smollm2": partial(decode.gap, name="smollm2"),
    "sampled-smollm2": partial(sampled.sampled, name="smollm2"),
    "step": passes.step,
    "gap-dense27b": partial(decode.gap, name="dense27b"),
    "verify-1k": partial(passes.verify, place=SHORT),
    "prefill": passes.prefill,
    "replay": replay.replay,
    "verify-32k": partial(passes.verify, place=LONG),
    "arithmetic": replay.arithmetic,
    "decode-dense27b": partial(decode.decode, name="dense27b"),
    "restore": process.restore,
    "memory": process.memory,
    "start": process.start,
} | {
    passes.named(figure, HYBRID): partial(measure, name=HYBRID)
    for figure, measure in {
        "step": passes.step,
        "verify-1k": partial(passes.verify, place=SHORT),
        "forced": forced.forced,
        "commit": passes.commit,
        "recurrence": recurrence.recurrence,
        "prefill-4k": recurrence.long_prompt,
        "verify-32k": partial(passes.verify, place=LONG),
        "replay": replay.replay,
        "gap": decode.gap,
        "sampled": sampled.sampled,
        "prefill": passes.prefill,
        "restore": process.restore,
        "memory": process.memory,
        "start": process.start,
    }.items()
}
"""In the order that opens each bundle once, what matters most first; the last three of a bundle start processes of
their own."""


def main() -> int:
    """Returns the exit code."""
    options = parse()
    bundles = {name: path for name in SHAPES if (path := getattr(options, name))}
    context = Context(bundles, repeats=options.repeats, layers=options.layers)
    found, left_out, began = list[Figure](), list[str](), time.perf_counter()
    print(describe(), flush=True)
    for name in chosen(options.only, bundles):
        left = options.budget - (time.perf_counter() - began)
        if left < 5:
            left_out.append(f"{name}: left out: no time is left of {options.budget:.0f} s")
            continue
        started = time.perf_counter()
        result = measure(context, name, min(left, options.limit))
        if isinstance(result, str):
            left_out.append(f"{name}: left out: {result}")
            print(f"\n{left_out[-1]}", flush=True)
            continue
        found.append(result)
        print(f"\n{result.text()}\n  took {time.perf_counter() - started:.0f} s", flush=True)
        write(options, found, left_out)
    context.close()
    print("\n".join(["", *summary(found), *left_out]), flush=True)
    return 1 if left_out or any(verdict(figure) or figure.identical is False for figure in found) else 0


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    add = parser.add_argument
    for name in SHAPES:
        add(f"--{name}", type=Path, metavar="BUNDLE", help=f"a CUDA bundle of shape {name}")
    add("--only", help=f"figures or the first parts of their names, by commas: {', '.join(FIGURES)}")
    add("--layers", type=int, help="large bundles have fewer layers, for a try")
    add("--repeats", type=int, default=7, help="turns that count")
    add("--limit", type=float, default=240, metavar="SECONDS", help="the most that one figure may take")
    add("--budget", type=float, default=560, metavar="SECONDS", help="the most that all may take together")
    add("--json", type=Path, metavar="FILE", help="write every run there")
    add("--markdown", type=Path, metavar="FILE", help="write the tables there")
    return parser.parse_args()


def chosen(only: str | None, bundles: dict[str, Path]) -> list[str]:
    """Names of the figures to take: those asked for, or all that the bundles given allow."""
    if only:
        wanted = [part for part in only.split(",") if part]
        if unknown := [part for part in wanted if not any(name.startswith(part) for name in FIGURES)]:
            sys.exit(f"error: there is no figure {unknown[0]}; there are {', '.join(FIGURES)}")
        return [name for name in FIGURES if any(name.startswith(part) for part in wanted)]
    return [name for name in FIGURES if shape_of(name) in bundles]


def shape_of(name: str) -> str:
    """The shape whose bundle a figure is about."""
    if name.startswith(passes.OF_HYBRIDS):
        return HYBRID
    return "smollm2" if name.endswith("smollm2") else "dense27b"


def measure(context: Context, name: str, seconds: float) -> Figure | str:
    """The figure, or why there is none."""
    try:
        with time_limit(seconds):
            return FIGURES[name](context)
    except (Missing, TandemError, TimeoutError) as error:
        reason = str(error)
    except Exception as error:  # whatever it is, the other figures are still wanted
        reason = f"{type(error).__name__}: {error}"
    context.abandon()
    return reason.strip().splitlines()[0] if reason.strip() else "no reason given"


def verdict(figure: Figure) -> list[str]:
    """Names of the lines that missed what they must reach."""
    return [line.name for line in figure.lines if line.goal and line.goal.verdict(line.spread.median) == "missed"]


def summary(figures: list[Figure]) -> list[str]:
    """One line for each goal."""
    return [f"{figure.name:<16}{line.text()}" for figure in figures for line in figure.lines if line.goal]


def describe() -> str:
    """The GPU, its driver and the libraries, as they stand in the measurements."""
    import torch
    import triton

    versions = f"torch {torch.__version__}, Triton {triton.__version__}, Python {sys.version.split()[0]}"
    if not torch.cuda.is_available():  # asked first: torch starts CUDA as it likes it
        return f"no GPU, {versions}"
    from tandem.gpu import gpus

    gpu = gpus()[0]
    return f"{gpu.name}, {gpu.memory / 2**30:.0f} GiB, driver of CUDA {gpu.driver}, {versions}"


def write(options: argparse.Namespace, found: list[Figure], left_out: list[str]) -> None:
    """What there is so far, so that an interrupted run leaves what it measured."""
    if options.markdown:
        options.markdown.write_text("\n".join(figure.markdown() for figure in found))
    if options.json:
        record: dict[str, Any] = {"machine": describe(), "date": time.strftime("%Y-%m-%d"), "left_out": left_out}
        record["figures"] = [figure.record() for figure in found]
        options.json.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    sys.exit(main())
