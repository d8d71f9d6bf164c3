"""Single passes of the large bundle: a step against the reading of its weights, verifies against steps, prefill."""

from __future__ import annotations

from bench.gpu.context import Context
from bench.gpu.device import Device
from bench.gpu.figures.contexts import LONG, SHORT, spoken
from bench.gpu.passes import interleaved
from bench.gpu.shapes import DENSE27B
from figure import Figure, Line
from spread import Goal, Spread
from tandem.keys import Kind

GOALS = {
    (SHORT, 16): Goal(1.06, 1.03),
    (SHORT, 32): Goal(1.12, 1.06),
    (LONG, 32): Goal(1.30, 1.15),
}
PREFILL = 2048


def step(context: Context) -> Figure:
    """Weight bytes of a step over its time, as a share of the read ceiling of the same process."""
    figure = Figure("step", "plain step of the 27B-shaped bundle at 1k, against the mere reading of its weights")
    opened = context.open(DENSE27B.name)
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


def verify(context: Context, place: int) -> Figure:
    """Verifies of 16 and 32 rows, chains and trees, over plain steps at the same context, turn by turn."""
    figure = Figure(f"verify-{spoken(place)}", f"verify over step, 27B-shaped, at {spoken(place)} of context")
    passes = context.open(DENSE27B.name).passes
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
        name = f"{kind.value.removeprefix('verify-')} of {rows} rows"
        figure.lines.append(Line(name, taken, "ms"))
        figure.lines.append(Line(f"{name} over step", taken.over(plain), "x", GOALS.get((place, rows))))
    return figure


def prefill(context: Context) -> Figure:
    """A prompt's first chunk of 2,048 tokens."""
    figure = Figure("prefill", f"prefill of {PREFILL} tokens, 27B-shaped")
    opened = context.open(DENSE27B.name)
    opened.passes.fill(PREFILL)
    runs = Spread.of([opened.passes.extend(PREFILL, 0) for _ in range(context.repeats + 1)][1:])
    flops = opened.shape.prefill_flops(PREFILL)
    rate = Spread.of([flops / ms / 1e9 for ms in runs.runs])
    figure.lines = [
        Line("the pass", runs, "ms"),
        Line("rate", rate, "TFLOP/s", Goal(350, 500), f"{flops / 1e12:.1f} TFLOP"),
    ]
    return figure
