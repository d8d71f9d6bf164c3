"""How fast a prompt of 512 tokens is taken in: each profile against llama.cpp at the same bits and Transformers."""

from __future__ import annotations

from figure import Figure, Line
from figures.context import Context
from sides.process import Side, disturbance
from sides.roster import LLAMA, TRANSFORMERS
from spread import Goal, Spread

TOKENS = 512
GOAL = Goal(1.0, 1.3)


def measure(context: Context, profile: str) -> Figure:
    """The goal is held against the peer that is fastest by its median."""
    figure = Figure(f"prefill-{profile}", f"a prompt of {TOKENS} tokens up to its first token, {profile} and peers")
    prompt = context.prompts.long(TOKENS)
    peers = [peer for peer in LLAMA if peer.bits == profile] + [TRANSFORMERS]
    with context.sides(profile, peers) as (ours, theirs, figure.absent):
        sides = [ours, *theirs.values()]

        def play() -> None:
            for side in sides:
                side.run(prompt.ids, 1)

        def forget() -> None:
            for side in sides:
                side.runs.clear()

        context.turns(figure.name, play, forget)
        figure.lines = [Line(side.name, rates(side), "tok/s") for side in sides]
        fastest = max((rates(side).median for side in theirs.values()), default=0.0)
        for side in theirs.values():
            goal = GOAL if rates(side).median == fastest else None
            figure.lines.append(Line(f"over {side.name}", rates(ours).over(rates(side)), "x", goal))
        figure.disturbed = disturbance(sides)
    return figure


def rates(side: Side) -> Spread:
    """Prompt tokens a second of a side's runs."""
    return Spread.of(1e3 * TOKENS / run.prefill_ms for run in side.runs)
