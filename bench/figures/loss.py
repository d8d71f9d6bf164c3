"""Loss on text that was held out, of an fp32 bundle and of Transformers on the same weights: how far they are apart."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean

from figure import Figure, Line
from sides.process import SideError, environment
from spread import Goal, Spread

APART = Goal(1e-4, 0.0)
Windows = Sequence[list[int]]


def measure(bundle: Path, checkpoint: Path, domains: Mapping[str, Windows], threads: int) -> Figure:
    """Windows by domain, all of one length; the last token of each is only predicted."""
    figure = Figure("loss-fp32", "nats a token of text that was held out, and Transformers in fp32 on the same weights")
    mine = ours(bundle, [ids for windows in domains.values() for ids in windows], threads)
    other = theirs(checkpoint, [ids for windows in domains.values() for ids in windows], threads)
    begin = 0
    for domain, windows in domains.items():
        part = slice(begin, begin := begin + len(windows))
        tokens = sum(len(ids) - 1 for ids in windows)
        figure.lines += lines(domain, fmean(mine[part]), fmean(other[part]), f"{tokens:,} tokens")
    if len(domains) > 1:
        figure.lines += lines("all", fmean(mine), fmean(other), "")
    widest = max(abs(one - two) for one, two in zip(mine, other, strict=True))
    figure.lines.append(Line("window that is furthest apart", Spread.of([widest]), "nats"))
    return figure


def lines(domain: str, mine: float, other: float, note: str) -> list[Line]:
    return [
        Line(f"{domain}, tandem fp32", Spread.of([mine]), "nats", note=note),
        Line(f"{domain}, Transformers fp32", Spread.of([other]), "nats"),
        Line(f"{domain}, apart", Spread.of([abs(mine - other)]), "nats", APART),
    ]


def ours(path: Path, windows: Windows, threads: int) -> list[float]:
    """Mean loss of each window, from the logits of the bundle's own programs."""
    from tandem.artifacts.reader import open_bundle
    from tandem.runtime.checks.quality import read
    from tandem.runtime.loading import open_executor

    bundle = open_bundle(path)
    num_pages = -(-max(map(len, windows)) // bundle.geometry.page_tokens)
    executor = open_executor(bundle, threads=None if bundle.on_gpu else threads, num_pages=num_pages)
    try:
        return [read(executor, [ids]).loss for ids in windows]
    finally:
        executor.close()


def theirs(checkpoint: Path, windows: Windows, threads: int) -> list[float]:
    """The same of Transformers, in a process of its own. SideError if it is not installed or fails."""
    done = subprocess.run(
        [sys.executable, "-m", "sides.transformers_loss", str(checkpoint), str(threads)],
        input=json.dumps([list(ids) for ids in windows]),
        capture_output=True,
        text=True,
        env=environment(),
    )
    if done.returncode != 0:
        raise SideError(f"Transformers: {done.stderr.strip().rpartition(chr(10))[2]}")
    return json.loads(done.stdout)
