"""What sampling costs: sampled plain answers over greedy ones of one bundle, turn by turn, and the time of draws alone.

Also with the draws made on the host, as for requests with guides: logits are copied back then.
"""

from __future__ import annotations

import gc
from collections.abc import Callable

from bench.gpu.context import Context, Opened
from bench.gpu.device import Device
from bench.gpu.figures.contexts import SHORT
from bench.gpu.passes import answer, interleaved
from figure import Figure, Line
from spread import Goal
from tandem.keys import MAX_TREE_ROWS, Kind
from tandem.runtime.checks.watch import HostDraws
from tandem.runtime.executor.base import Executor
from tandem.runtime.request import Penalties, Sampling

TOKENS = 128
ALL = Penalties(repetition=1.1, presence=0.5, frequency=0.5)
FILTERED = Sampling(0.7, top_p=0.95, top_k=20, seed=1)
MANNERS: dict[str, tuple[Sampling, Penalties]] = {
    "greedy": (Sampling(), Penalties()),
    "temperature 0.7": (Sampling(0.7, seed=1), Penalties()),
    "temperature 0.7, top_p 0.95": (Sampling(0.7, top_p=0.95, seed=1), Penalties()),
    "temperature 0.7, top_p 0.95, penalties": (Sampling(0.7, top_p=0.95, seed=1), ALL),
    "temperature 0.7, top_k 20, top_p 0.95": (FILTERED, Penalties()),
    "temperature 0.7, top_k 20, top_p 0.95, penalties": (FILTERED, ALL),
}
GOAL = Goal(0.9, 0.97)


def sampled(context: Context, name: str) -> Figure:
    """Tokens a second of every manner over the greedy ones of its turn; then microseconds of draws alone."""
    opened = context.open(name)
    opened.passes.forget()
    gc.collect()
    gc.freeze()  # as in a server, which need not look through a framework's objects
    sides = {manner: _answering(opened, opened.executor, *how) for manner, how in MANNERS.items()}
    hosted = f"{list(MANNERS)[-1]}, on the host"
    sides[hosted] = _answering(opened, HostDraws(opened.executor), FILTERED, ALL)
    spreads = interleaved(sides, min(5, context.repeats))
    figure = Figure(f"sampled-{name}", f"sampled answers of {TOKENS} tokens behind {SHORT}, {name}")
    figure.lines = [Line(manner, spread, "tok/s") for manner, spread in spreads.items()]
    for manner, spread in list(spreads.items())[1:]:
        over = spread.over(spreads["greedy"])
        figure.lines.append(Line(f"{manner}: over greedy", over, "x", None if manner == hosted else GOAL))
    opened.passes.fill(SHORT)
    device = Device(opened.executor)
    for manner, how in list(MANNERS.items())[1:]:
        for rows in (1, MAX_TREE_ROWS):
            opened.passes.draw(rows, SHORT, *how)  # leaves its wishes where the graph reads them
            busy = device.graph_ms(Kind.SAMPLE, 0, rows)
            figure.lines.append(Line(f"a draw of {rows} rows, {manner}", busy.times(1e3), "us"))
    return figure


def _answering(opened: Opened, executor: Executor, sampling: Sampling, penalties: Penalties) -> Callable[[], float]:
    """Measures tokens a second of one answer."""
    return lambda: 1e3 / answer(executor, opened.bundle.prices, SHORT, TOKENS, sampling, penalties).ms
