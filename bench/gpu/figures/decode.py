"""Plain decoding through the engine, beside Transformers compiled; and what the host takes between rounds."""

from __future__ import annotations

import gc

from bench.gpu.context import Context, Missing, child
from bench.gpu.device import Device
from bench.gpu.figures.contexts import SHORT
from bench.gpu.passes import answer
from bench.gpu.shapes import DENSE27B, SMOLLM2
from figure import Figure, Line
from spread import Goal, Spread
from tandem.keys import MAX_TREE_ROWS, Kind

TOKENS = {SMOLLM2.name: 512, DENSE27B.name: 64}
RATES = {SMOLLM2.name: Goal(1500, 3000)}
RATIOS = {SMOLLM2.name: Goal(2.4, 4.8), DENSE27B.name: Goal(1.2, 1.35)}
PEER = "bench.gpu.peers.transformers_compiled"


def decode(context: Context, name: str) -> Figure:
    """Tokens a second behind a prompt of 1k tokens, ours and the peer's, in one call."""
    tokens = TOKENS[name]
    figure = Figure(f"decode-{name}", f"plain decoding of {tokens} tokens behind {SHORT}, {name}")
    ours = milliseconds(context, name, tokens)
    figure.lines += [
        Line("tandem", Spread.of([1e3 / ms for ms in ours.runs]), "tok/s", RATES.get(name)),
        Line("tandem, a token", ours, "ms"),
    ]
    try:
        shape = context.shapes[name]
        found = child(
            PEER,
            *("--shape", name, "--layers", str(shape.num_hidden_layers)),
            *("--context", str(SHORT), "--tokens", str(tokens), "--repeats", str(context.repeats)),
        )
    except Missing as missing:
        figure.absent.append(str(missing))
        return figure
    theirs = Spread.of(found["ms"]["runs"])
    figure.lines += [
        Line(found["versions"], Spread.of([1e3 / ms for ms in theirs.runs]), "tok/s"),
        Line("that, a token", theirs, "ms"),
        Line("over Transformers compiled", Spread.of([theirs.median / ms for ms in ours.runs]), "x", RATIOS[name]),
    ]
    return figure


def gap(context: Context, name: str) -> Figure:
    """Wall time of a round less the device's time for its graph, launched many times in a row."""
    figure = Figure(f"gap-{name}", f"what the host takes between two rounds, {name}")
    rounds = milliseconds(context, name, MAX_TREE_ROWS)  # none of them leaves the context class
    opened = context.open(name)
    opened.passes.fill(SHORT)
    opened.passes.step(SHORT)  # leaves its rows where the graph reads them
    busy = Device(opened.executor).graph_ms(Kind.EXTEND, SHORT + 1, 1)
    figure.lines = [
        Line("a round", rounds.times(1e3), "us"),
        Line("the device in it", busy.times(1e3), "us"),
        Line("host gap", Spread.of([1e3 * (ms - busy.median) for ms in rounds.runs]), "us", Goal(100, 40)),
    ]
    return figure


def milliseconds(context: Context, name: str, tokens: int) -> Spread:
    """Milliseconds a token of several answers, after one that does not count."""
    opened = context.open(name)
    opened.passes.forget()
    gc.collect()
    gc.freeze()  # as in a server, which need not look through a framework's objects
    runs = [answer(opened.executor, opened.bundle.prices, SHORT, tokens).ms for _ in range(min(5, context.repeats) + 1)]
    return Spread.of(runs[1:])
