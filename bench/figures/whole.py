"""Figures of the whole road: how long a start takes and what it holds, and how long a compile takes."""

from __future__ import annotations

import tempfile
import time
from pathlib import Path

from answer import CommandError, command
from figure import Figure, Line
from figures.context import Context
from smollm2 import fetch
from spread import Goal, Spread
from start import install
from start import start as measure_start


def start(context: Context) -> Figure:
    """`bench/start.py`, with the first of the bundles and a fresh base install."""
    figure = Figure("start", f"what a start costs, {context.profiles[0]}")
    bundle = context.roster.bundles[context.profiles[0]]
    found = measure_start(bundle, context.repeats)

    def line(title: str, name: str, unit: str, goal: Goal | None) -> Line:
        return Line(title, Spread.of(found[name]["runs"]), unit, goal)

    prompt = f"process start to first token, {found['prompt_tokens']:.0f}-token prompt"
    figure.lines = [
        line(prompt, "first_token_s", "s", Goal(0.7, 0.35)),
        line("process start to a listening server", "listening_s", "s", None),
        line("resident beyond weights and KV, one answer", "resident_mb", "MB", Goal(120, 70)),
        line("resident beyond weights and KV, a server", "serving_mb", "MB", None),
    ]
    try:
        size = Spread.of([install()["install_mb"]])
        figure.lines.append(Line("fresh base install", size, "MB", Goal(150, 100)))
    except CommandError as error:
        figure.absent.append(f"fresh base install: {error}")
    return figure


def compile_time(context: Context) -> Figure:
    """One compile of each profile, checkpoint to sealed bundle; the bundle is thrown away."""
    figure = Figure("compile", "tandem-compile of one bundle, once each")
    for profile in context.profiles:
        with tempfile.TemporaryDirectory() as folder:
            began = time.perf_counter()
            command("tandem-compile", fetch(), "--profile", profile, "-o", Path(folder) / "bundle")
            seconds = time.perf_counter() - began
        figure.lines.append(Line(f"tandem-compile --profile {profile}", Spread.of([seconds]), "s", Goal(180, 60)))
    return figure
