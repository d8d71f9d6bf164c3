"""A restored graph against the same launches captured from a stream, and one arithmetic against the fastest torch has.

Both take the bundle's own programs in the bundle's own memory.
"""

from __future__ import annotations

from bench.gpu.context import Context, Opened
from bench.gpu.device import Device, some
from bench.gpu.figures.contexts import LONG, SHORT, spoken
from bench.gpu.figures.passes import named
from bench.gpu.shapes import BF16, DENSE27B, Shape
from figure import Figure, Line
from spread import Goal, Spread
from tandem.keys import Kind

CLASSES = {
    "linear": lambda kernel: kernel.symbol.startswith("linear"),
    "attention": lambda kernel: kernel.symbol.startswith("attention"),
    "norm": lambda kernel: kernel.symbol.endswith("rms_norm"),
}
"""Kernels of the three operators. Rotation, cache writes and glue are neither side's here."""
WEIGHT_SETS, CACHE_SETS = 2 << 30, 512 << 20
"""Bytes that a graph of torch's calls walks through, so that none finds its data in the cache."""


def replay(context: Context, name: str = DENSE27B.name) -> Figure:
    """Plain steps and a verify of 16 rows, restored and captured, turn by turn."""
    figure = Figure(named("replay", name), f"replay of a restored graph against the captured original, {name}, at 1k")
    opened = context.open(name)
    opened.passes.fill(SHORT)
    device = Device(opened.executor)
    for kind, rows in ((Kind.EXTEND, 1), (Kind.VERIFY_TREE, 16)):
        _run(opened, kind, rows, SHORT)
        program = device.program(kind, SHORT + rows, rows)
        with device.restored(program) as restored, device.captured(program) as captured:
            found = device.interleaved_ms({"restored": restored, "captured": captured}, context.repeats)
        what = f"{kind.value}, {rows} row{'s' * (rows > 1)}"
        figure.lines += [Line(f"{what}, {side}", taken, "ms") for side, taken in found.items()]
        ratio = found["restored"].over(found["captured"])
        figure.lines.append(
            Line(f"{what}, ratio", ratio, "x", Goal(1.01, 1.0), f"{ratio.median:.4f}, {len(program.launches)} nodes")
        )
    return figure


def arithmetic(context: Context) -> Figure:
    """Device time of a step's linears, attention and norms, ours as the program has them, torch's call by call."""
    figure = Figure(
        "arithmetic", "price of one arithmetic: a step's linear, attention and norm against torch's fastest"
    )
    opened = context.open(DENSE27B.name)
    ours, theirs = dict[str, Spread](), dict[str, Spread]()
    for place in (SHORT, LONG):
        opened.passes.fill(place)
        _run(opened, Kind.EXTEND, 1, place)
        for name, spread in _ours(opened, place, context.repeats).items():
            ours[f"{name} at {spoken(place)}"] = spread
        for name, ms in _theirs(opened.shape, place + 1, context.repeats).items():
            theirs[f"{name} at {spoken(place)}"] = ms
    for name, mine in ours.items():
        figure.lines += [Line(f"{name}, tandem", mine, "ms"), Line(f"{name}, torch", theirs[name], "ms")]
    for place in (SHORT, LONG):
        names = [name for name in ours if name.endswith(f"at {spoken(place)}")]
        mine, other = (sum(side[name].median for name in names) for side in (ours, theirs))
        figure.lines.append(Line(f"sum at {spoken(place)}, tandem", Spread.of([mine]), "ms"))
        figure.lines.append(Line(f"sum at {spoken(place)}, torch", Spread.of([other]), "ms"))
        figure.lines.append(
            Line(f"sum at {spoken(place)}, over torch", Spread.of([mine / other]), "x", Goal(1.03, 0.999))
        )
    return figure


def _run(opened: Opened, kind: Kind, rows: int, place: int) -> None:
    """Leaves the pass's rows where its graph reads them."""
    if kind is Kind.EXTEND:
        opened.passes.step(place)
    else:
        opened.passes.verify(kind, rows, place)


def _ours(opened: Opened, place: int, repeats: int) -> dict[str, Spread]:
    """Milliseconds a step by operator. The gated product includes silu(gate) * value, a norm the sum before it."""
    device, found = Device(opened.executor), dict[str, Spread]()
    program = device.program(Kind.EXTEND, place + 1, 1)
    for name, wanted in CLASSES.items():
        with device.restored(some(program, wanted)) as graph:
            found[name] = device.ms(graph, repeats)
    return found


def _theirs(shape: Shape, length: int, repeats: int) -> dict[str, Spread]:
    """Milliseconds a step by operator, one row, from the mean call over data that outgrows the cache."""
    import torch

    from bench.gpu.peers import library
    from bench.gpu.timing import graph_us

    layers, device = shape.num_hidden_layers, torch.device("cuda")

    def random(*size: int) -> torch.Tensor:
        return torch.randn(size, device=device, dtype=torch.bfloat16)

    total = 0.0
    for count, (rows, columns) in [
        *((layers, size) for size in shape.matrices.values()),
        (1, (shape.vocab_size, shape.hidden_size)),
    ]:
        sets = max(2, -(-WEIGHT_SETS // (BF16 * rows * columns)))
        weights = [random(rows, columns).mul_(columns**-0.5) for _ in range(sets)]
        total += 1e-3 * count * graph_us(library.linears(random(1, columns), weights), repeats=repeats).median
        del weights
    heads, groups, size = shape.num_attention_heads, shape.num_key_value_heads, shape.head_dim
    sets = min(128, max(4, -(-CACHE_SETS // (2 * BF16 * groups * length * size))))
    caches = [(random(groups, length, size), random(groups, length, size)) for _ in range(sets)]
    attention = graph_us(library.attentions(random(1, heads, size), caches), repeats=repeats)
    hidden = [random(1, shape.hidden_size).float() for _ in range(64)]
    weight = torch.ones(shape.hidden_size, device=device)
    norm = graph_us(library.norms(hidden, weight, shape.rms_norm_eps), repeats=repeats)
    torch.cuda.empty_cache()
    return {
        "linear": Spread.of([total]),
        "attention": attention.times(1e-3 * layers),
        "norm": norm.times(1e-3 * (2 * layers + 1)),
    }
