"""What a verify of eight rows costs, in plain steps: the lower, the less a wrong guess costs."""

from __future__ import annotations

from figure import Figure, Line
from figures.context import Context
from spread import Goal, Spread

ROWS, CONTEXT = 8, 256
BATCH = 8
"""Passes of one kind that follow each other; of each batch the median counts."""
GOALS = {"bf16": Goal(1.9, 1.6), "int8": Goal(1.6, 1.3)}


def measure(context: Context, profile: str) -> Figure:
    """In this process, through the executor alone: no drafter, no router, no text."""
    from tandem.artifacts.reader import open_bundle
    from tandem.keys import Kind
    from tandem.runtime.checks.pricing import pass_ms
    from tandem.runtime.loading import open_executor

    bundle = open_bundle(context.roster.bundles[profile])
    num_pages = -(-(CONTEXT + ROWS) // bundle.geometry.page_tokens)
    executor = open_executor(bundle, threads=context.roster.threads, num_pages=num_pages)
    step, verify = list[float](), list[float]()

    def batch(kind: Kind, rows: int) -> float:
        return Spread.of(pass_ms(executor, kind, rows, CONTEXT) for _ in range(BATCH)).median

    def play() -> None:
        step.append(batch(Kind.EXTEND, 1))
        verify.append(batch(Kind.VERIFY_CHAIN, ROWS))

    def forget() -> None:
        step.clear()
        verify.clear()

    name = f"verify-{profile}"
    try:
        context.turns(name, play, forget)
    finally:
        executor.close()
    steps, verifies = Spread.of(step), Spread.of(verify)
    figure = Figure(name, f"a verify of {ROWS} rows in plain steps, {profile}, behind {CONTEXT} tokens")
    figure.lines = [
        Line("step", steps, "ms"),
        Line(f"verify of {ROWS} rows", verifies, "ms"),
        Line(f"verify({ROWS}) / step", verifies.over(steps), "x", GOALS.get(profile)),
    ]
    return figure
