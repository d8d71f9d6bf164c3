"""What the exact recurrence of a hybrid costs, row by row, beside a closed form: of a verify, and of a long prompt.

Both time the bundle's own launches of the rule and leave the rest of the pass as it is: with a closed form it takes as
long as it does, less those, plus that one. Of the closed forms that are there the fastest counts.
"""

from __future__ import annotations

from collections.abc import Sequence

from bench.gpu.context import Context, Missing
from bench.gpu.device import Device, some
from bench.gpu.figures.contexts import SHORT
from bench.gpu.figures.passes import named
from bench.gpu.passes import bushy
from bench.gpu.shapes import HYBRID27B, HybridShape, Shape
from figure import Figure, Line
from spread import Goal, Spread
from tandem.artifacts.program import Program
from tandem.keys import MAX_TREE_ROWS, Kind

LONG_PROMPT = 4096
COST, SLOWDOWN = Goal(3.0, 0.0), Goal(1.3, 1.1)


RULES = ("delta_rule", "delta_verify")
"""Kernels of the rule alone: what they are given is ready, and what gates their output comes behind them."""


def rule_of(device: Device, kind: Kind, length: int, rows: int) -> Program:
    """The launches of the rule in the program of such a pass. Missing where there are none."""
    found = some(device.program(kind, length, rows), lambda kernel: kernel.symbol.startswith(RULES))
    if not len(found.launches):
        raise Missing(f"the program of {kind.value} launches neither of {', '.join(RULES)}")
    return found


def recurrence(context: Context, name: str = HYBRID27B.name) -> Figure:
    """The rule in verifies of 32 rows, chain and tree, as a share of a plain step beyond the closed form's."""
    figure = Figure(named("recurrence", name), f"the exact recurrence in a verify of {MAX_TREE_ROWS} rows, {name}")
    opened = context.open(name)
    opened.passes.fill(SHORT)
    opened.passes.step(SHORT)
    device = Device(opened.executor)
    step = device.graph_ms(Kind.EXTEND, SHORT + 1, 1)
    figure.lines.append(Line("a plain step, the device's time", step, "ms"))
    parents = {Kind.VERIFY_CHAIN: (), Kind.VERIFY_TREE: bushy(list(range(MAX_TREE_ROWS))).parents}
    for kind, shape in parents.items():
        opened.passes.verify(kind, MAX_TREE_ROWS, SHORT)
        with device.restored(rule_of(device, kind, SHORT + MAX_TREE_ROWS, MAX_TREE_ROWS)) as graph:
            ours = device.ms(graph, context.repeats)
        what = kind.value.removeprefix("verify-")
        figure.lines.append(Line(f"{what}: the rule, all layers", ours, "ms"))
        if (best := closed(figure, what, opened.shape, MAX_TREE_ROWS, shape)) is not None:
            cost = Spread.of([100 * (ms - best) / step.median for ms in ours.runs])
            figure.lines.append(Line(f"{what}: beyond the closed form, of a step", cost, "%", COST))
    return figure


def long_prompt(context: Context, name: str = HYBRID27B.name) -> Figure:
    """Prefill of 4,096 tokens over the same with a closed form."""
    figure = Figure(named("prefill-4k", name), f"prefill of {LONG_PROMPT} tokens, exact against a closed form, {name}")
    opened = context.open(name)
    opened.passes.fill(LONG_PROMPT)
    rows = opened.passes.geometry.max_rows
    starts = range(0, LONG_PROMPT, rows)
    runs = [sum(opened.passes.extend(rows, start) for start in starts) for _ in range(context.repeats + 1)][1:]
    device = Device(opened.executor)
    with device.restored(rule_of(device, Kind.EXTEND, LONG_PROMPT, rows)) as graph:
        ours = device.ms(graph, 3).times(len(starts))
    whole = Spread.of(runs)
    figure.lines = [Line("the prompt", whole, "ms"), Line("of it the rule, all layers", ours, "ms")]
    if (best := closed(figure, f"{rows} rows", opened.shape, rows)) is not None:
        best *= len(starts)
        ratio = Spread.of([ms / (ms - ours.median + best) for ms in runs])
        figure.lines.append(Line("with the closed form", Spread.of([whole.median - ours.median + best]), "ms"))
        figure.lines.append(Line("exact over closed form", ratio, "x", SLOWDOWN))
    return figure


def closed(figure: Figure, what: str, shape: Shape, rows: int, parents: Sequence[int] = ()) -> float | None:
    """Milliseconds of the fastest closed form over all layers; a line for each, and none where none is there."""
    from bench.gpu.delta_peer import Heads, closed_us

    if not isinstance(shape, HybridShape):
        raise Missing(f"{shape.name} has no recurrent layers")
    sizes = (shape.linear_num_key_heads, shape.linear_num_value_heads)
    heads = Heads(shape.recurrent_layers, *sizes, shape.linear_key_head_dim, shape.linear_value_head_dim)
    found = []
    for maker, us in closed_us(heads, rows, parents):
        if isinstance(us, str):
            figure.absent.append(us)
        else:
            found.append(us * heads.layers / 1e3)
            figure.lines.append(Line(f"{what}: closed form, {maker}", Spread.of(found[-1:]), "ms"))
    return min(found, default=None)
