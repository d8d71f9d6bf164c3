"""What a serving process costs: graphs restored, things made once it serves, memory, time to the first token."""

from __future__ import annotations

import subprocess
import time
from pathlib import Path
from typing import Any

from answer import program
from bench.gpu.context import Context, Missing, child, environment
from bench.gpu.figures.passes import named
from bench.gpu.shapes import DENSE27B
from figure import Figure, Line
from spread import Goal, Spread
from tandem.artifacts import layout
from tandem.artifacts.reader import read_manifest

GIB = 2**30
PROMPT = "Tell me a story about a miller and his cat."
NONE = Goal(0.5, 0)
"""At most none: counts are whole."""


def restore(context: Context, name: str = DENSE27B.name) -> Figure:
    """Milliseconds a graph, and what was loaded, captured or allocated after ready; several processes."""
    figure = Figure(named("restore", name), f"graphs of {name}, restored by a process without a framework")
    found = [_served(context, name) for _ in range(min(3, context.repeats))]
    loads = [facts["loaded"] for facts in found]
    after = [sum(facts["after_ready"].values()) + len(facts["frameworks"]) for facts in found]
    figure.lines = [
        Line(
            "restore per graph", Spread.of([one["graphs_ms"] / one["graph_builds"] for one in loads]), "ms", Goal(4, 2)
        ),
        Line("graphs", _each(loads, "graph_builds"), "graphs"),
        Line("all graphs", _each(loads, "graphs_ms"), "ms"),
        Line("modules, once", _each(loads, "modules_ms"), "ms", note=f"{loads[0]['module_loads']} cubins"),
        Line("open, until all is ready", _each(found, "ready_ms"), "ms"),
        Line("loads, builds, allocations after ready", Spread.of(after), "calls", NONE, str(found[0]["after_ready"])),
    ]
    return figure


def memory(context: Context, name: str = DENSE27B.name) -> Figure:
    """Device memory that a serving process takes beyond weights, KV pages and recurrent states."""
    figure = Figure(named("memory", name), f"device memory of a serving process, {name}, 32k of context")
    found = context.served[name][-1] if context.served.get(name) else _served(context, name)
    sizes = found["loaded"]["region_bytes"]
    states = sizes.get("state", 0) + sizes.get("factors", 0)
    held = sizes["weights"] + sizes["kv"] + states
    figure.lines = [
        Line("weights", Spread.of([sizes["weights"] / GIB]), "GiB"),
        Line("KV pages", Spread.of([sizes["kv"] / GIB]), "GiB"),
        Line("recurrent states and factors", Spread.of([states / GIB]), "GiB"),
        Line("scratch and io", Spread.of([(sizes["scratch"] + sizes["io"]) / GIB]), "GiB"),
        Line(
            "beyond weights, KV and states",
            Spread.of([(found["free_before"] - found["free"] - held) / GIB]),
            "GiB",
            Goal(2, 1),
        ),
    ]
    return figure


def start(context: Context, name: str = DENSE27B.name) -> Figure:
    """From a process's start to the first byte of its answer, beside the bare copy of as many bytes."""
    from bench.gpu.timing import pinned_copy_rate

    figure = Figure(named("start", name), f"process start to first token, {name}, weights in the page cache")
    context.close()
    bundle = context.bundle(name)
    nbytes = (bundle / layout.WEIGHTS).stat().st_size
    rate = pinned_copy_rate()
    copy = Spread.of([nbytes / run for run in rate.runs])
    taken = Spread.of([_first_byte(bundle) for _ in range(min(5, context.repeats) + 1)][1:])
    figure.lines = [
        Line("process start to first token", taken, "s"),
        Line("bare copy of the weights", copy, "s", note=f"{nbytes / 1e9:.1f} GB at {rate.median / 1e9:.1f} GB/s"),
        Line("beyond the copy", Spread.of([run - copy.median for run in taken.runs]), "s", Goal(1.0, 0.5)),
    ]
    return figure


def _served(context: Context, name: str) -> dict[str, Any]:
    """What a serving process says of itself, and as `free_before` the device's free bytes without it."""
    import torch

    context.close()
    torch.cuda.empty_cache()
    before, _ = torch.cuda.mem_get_info()
    found = {"free_before": before} | child("bench.gpu.served", context.bundle(name))
    context.served.setdefault(name, []).append(found)
    return found


def _each(facts: list[dict[str, Any]], name: str) -> Spread:
    return Spread.of(one[name] for one in facts)


def _first_byte(bundle: Path) -> float:
    """Seconds until `tandem-run` says the first thing."""
    words = [*program("tandem-run"), str(bundle), "--prompt", PROMPT, "--max-tokens", "16"]
    words += ["--max-model-len", str(min(32_768, read_manifest(bundle).geometry.context_length))]
    began = time.perf_counter()
    with subprocess.Popen(
        words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, bufsize=0, env=environment()
    ) as process:
        try:
            assert process.stdout and process.stderr
            first = process.stdout.read(1)
            seconds = time.perf_counter() - began
            if not first:
                said = process.stderr.read().decode(errors="replace").strip().splitlines()
                raise Missing(f"tandem-run said nothing: {said[-1] if said else ''}")
            process.stdout.read()
            return seconds
        finally:
            process.kill()
