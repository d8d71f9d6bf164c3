"""Single passes of a large bundle: a step against the reading of its weights, verifies against steps, prefill and
commit."""

from __future__ import annotations

from bench.gpu.context import Context
from bench.gpu.device import Device
from bench.gpu.figures.contexts import LONG, SHORT, spoken
from bench.gpu.passes import interleaved
from bench.gpu.shapes import DENSE27B, HYBRID27B
from figure import Figure, Line
from spread import Goal, Spread
from tandem.keys import Kind

GOALS = {
    DENSE27B.name: {(SHORT, 16): Goal(1.06, 1.03), (SHORT, 32): Goal(1.12, 1.06), (LONG, 32): Goal(1.30, 1.15)},
    HYBRID27B.name: {(SHORT, 16): Goal(1.08, 1.04), (SHORT, 32): Goal(1.15, 1.08), (LONG, 32): Goal(1.30, 1.15)},
}
PREFILL = 2048
RATES = {DENSE27B.name: Goal(350, 500)}
COMMIT = Goal(0.3, 0.1)


OF_HYBRIDS = "hybrid-"


def named(figure: str, name: str) -> str:
    """What a figure of the large shape `name` is called."""
    return OF_HYBRIDS + figure if name == HYBRID27B.name else figure


def step(context: Context, name: str = DENSE27B.name) -> Figure:
    """Weight bytes of a step over its time, as a share of the read ceiling of the same process."""
    figure = Figure(named("step", name), f"plain step of {name} at 1k, against the mere reading of its weights")
    opened = context.open(name)
    opened.passes.fill(SHORT)
    runs = [opened.passes.step(SHORT) for _ in range(4 * context.repeats + 2)][2:]
    device = Device(opened.executor).graph_ms(Kind.EXTEND, SHORT + 1, 1)
    from bench.gpu.timing import read_ceiling

    ceiling, nbytes = read_ceiling(), opened.shape.step_bytes
    share = Spread.of([1e5 * nbytes / ms / ceiling.median for ms in device.runs])
    whole = Spread.of([1e5 * nbytes / ms / ceiling.median for ms in runs])
    figure.lines = [
        Line("a step, the host's time", Spread.of(runs), "ms"),
        Line("a step, the device's time", device, "ms"),
        Line("memory reads", ceiling.times(1e-9), "GB/s"),
        Line("weight bytes over read bandwidth", share, "%", Goal(85, 92), f"{nbytes / 1e9:.2f} GB a step"),
        Line("the same by the host's time", whole, "%"),
    ]
    return figure


def verify(context: Context, place: int, name: str = DENSE27B.name) -> Figure:
    """Verifies of 16 and 32 rows, chains and trees, over plain steps at the same context, turn by turn."""
    figure = Figure(named(f"verify-{spoken(place)}", name), f"verify over step, {name}, at {spoken(place)} of context")
    passes = context.open(name).passes
    passes.fill(place)
    sides = {
        (kind, rows): (lambda kind=kind, rows=rows: passes.verify(kind, rows, place))
        for rows in (16, 32)
        for kind in (Kind.VERIFY_CHAIN, Kind.VERIFY_TREE)
    }
    found = interleaved({"step": lambda: passes.step(place), **sides}, 2 * context.repeats)
    plain = found.pop("step")
    figure.lines = [Line("step", plain, "ms")]
    for (kind, rows), taken in found.items():
        side = f"{kind.value.removeprefix('verify-')} of {rows} rows"
        figure.lines.append(Line(side, taken, "ms"))
        figure.lines.append(Line(f"{side} over step", taken.over(plain), "x", GOALS[name].get((place, rows))))
    return figure


def prefill(context: Context, name: str = DENSE27B.name) -> Figure:
    """A prompt's first chunk of 2,048 tokens."""
    figure = Figure(named("prefill", name), f"prefill of {PREFILL} tokens, {name}")
    opened = context.open(name)
    opened.passes.fill(PREFILL)
    runs = Spread.of([opened.passes.extend(PREFILL, 0) for _ in range(context.repeats + 1)][1:])
    flops = opened.shape.prefill_flops(PREFILL)
    rate = Spread.of([flops / ms / 1e9 for ms in runs.runs])
    figure.lines = [
        Line("the pass", runs, "ms"),
        Line("rate", rate, "TFLOP/s", RATES.get(name), f"{flops / 1e12:.1f} TFLOP"),
    ]
    return figure


def commit(context: Context, name: str = HYBRID27B.name) -> Figure:
    """Moves of the longest path of a tree: K and V of the attention layers, states and tails of the others."""
    figure = Figure(
        named("commit", name), f"commit of a tree's longest path, a pass of its own over all layers, {name}"
    )
    opened = context.open(name)
    opened.passes.fill(SHORT)
    for rows in (16, 32):
        opened.passes.verify(Kind.VERIFY_TREE, rows, SHORT)
        runs = [opened.passes.commit(rows, SHORT) for _ in range(context.repeats + 1)][1:]
        device = Device(opened.executor).graph_ms(Kind.COMMIT, 0, rows)
        figure.lines += [
            Line(f"of {rows} rows, the host's time", Spread.of(runs), "ms"),
            Line(f"of {rows} rows, the device's time", device, "ms", COMMIT),
        ]
    return figure
