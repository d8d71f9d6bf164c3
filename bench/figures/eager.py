"""Plain decoding against Transformers eager on the same checkpoint, in both formats that it computes in."""

from __future__ import annotations

import sys
from contextlib import ExitStack
from pathlib import Path

from figure import Figure, Line
from figures.context import Context
from sides.process import Side, disturbance
from spread import Goal, Spread

GOAL = Goal(3.0, 3.0)
DTYPES = ("bfloat16", "float32")
MODULE = "sides.transformers_eager"


def measure(context: Context, checkpoint: Path, prompts: list[list[int]], profile: str = "bf16") -> Figure:
    """All sides go on with every prompt in turn, past any end of the text. Transformers is this Python's own."""
    title = (
        f"plain decoding of {len(prompts)} x {context.tokens} tokens, {profile}, and Transformers on the same weights"
    )
    figure, threads = Figure(f"decode-{profile}", title), str(context.roster.threads)
    with ExitStack() as stack:
        ours = stack.enter_context(context.roster.ours(profile))
        theirs = [
            stack.enter_context(
                Side(
                    f"Transformers eager, {dtype}",
                    Path(sys.executable),
                    MODULE,
                    checkpoint,
                    threads,
                    dtype,
                    OMP_NUM_THREADS=threads,
                )
            )
            for dtype in DTYPES
        ]
        sides = [ours, *theirs]
        context.versions |= {side.name: side.versions for side in sides}

        def play() -> None:
            for ids in prompts:
                for side in sides:
                    side.run(ids, context.tokens)

        def forget() -> None:
            for side in sides:
                side.runs.clear()

        context.turns(figure.name, play, forget)
        rates = [by_turn(side, len(prompts)) for side in sides]
        figure.disturbed = disturbance(sides)
    figure.lines = [Line(side.name, rate, "tok/s") for side, rate in zip(sides, rates, strict=True)]
    figure.lines += [
        Line(f"over {side.name}", rates[0].over(rate), "x", GOAL) for side, rate in zip(theirs, rates[1:], strict=True)
    ]
    return figure


def by_turn(side: Side, num_prompts: int) -> Spread:
    """Tokens a second of each turn, all its prompts together."""
    turns = [side.runs[i : i + num_prompts] for i in range(0, len(side.runs), num_prompts)]
    return Spread.of(1e3 * sum(len(run.ids) - 1 for run in turn) / sum(run.decode_ms for run in turn) for turn in turns)
