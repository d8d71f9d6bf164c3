"""One bundle asked the same in several ways, the first of which the others are held against: rates and equal ids.

Knows nothing of what the ways are.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

from figure import Figure, Line
from figures.context import Context
from prompts import Prompt
from sides.process import Run, Side, disturbance
from spread import Goal, Spread


@dataclass(frozen=True, slots=True)
class Way:
    """`options` are fields of `LoadOptions`, a process each; `speculate` False drafts nothing, whatever there is."""

    name: str
    speculate: bool = True
    options: dict[str, Any] = field(default_factory=dict)


PLAIN = Way("plain", speculate=False)

Played = list[list[tuple[Run, ...]]]
"""Runs by prompt, by turn and by way."""


def measure(
    context: Context,
    profile: str,
    figure: Figure,
    prompts: Sequence[Prompt],
    ways: Sequence[Way],
    num_tokens: int,
    goal: Goal | None = None,
    **sampling: Any,
) -> Figure:
    """Fills `figure`: all ways follow each other on every prompt, with `sampling` fields; ids must be the first's."""
    played: Played = [[] for _ in prompts]
    with ExitStack() as stack:
        sides: dict[str, Side] = {}
        for way in ways:
            if (key := repr(way.options)) not in sides:
                sides[key] = stack.enter_context(context.roster.ours(profile, **way.options))
        context.versions |= {side.name: side.versions for side in sides.values()}

        def play() -> None:
            for prompt, turns in zip(prompts, played, strict=True):
                more = {"stop_ids": prompt.stop_ids, **sampling}
                turns.append(
                    tuple(
                        sides[repr(way.options)].run(prompt.ids, num_tokens, speculate=way.speculate, **more)
                        for way in ways
                    )
                )

        def forget() -> None:
            for side in sides.values():
                side.runs.clear()
            for turns in played:
                turns.clear()

        context.turns(figure.name, play, forget)
        figure.disturbed = disturbance(list(sides.values()))
    figure.identical = all(run.ids == turn[0].ids for turns in played for turn in turns for run in turn)
    figure.lines = lines(prompts, played, [way.name for way in ways], goal)
    return figure


def lines(prompts: Sequence[Prompt], played: Played, names: Sequence[str], goal: Goal | None) -> list[Line]:
    """All prompts together, time over time turn by turn; then each prompt alone."""
    turns = list(zip(*played, strict=True))
    tokens = [sum(len(runs[0].ids) - 1 for runs in turn) for turn in turns]
    rates = [
        Spread.of(1e3 * n / sum(runs[way].decode_ms for runs in turn) for n, turn in zip(tokens, turns, strict=True))
        for way in range(len(names))
    ]
    found = [Line(name, rate, "tok/s") for name, rate in zip(names, rates, strict=True)]
    for way, name in enumerate(names[1:], 1):
        note = _counts([runs[-1][way] for runs in played])
        found.append(Line(f"{name} over {names[0]}", rates[way].over(rates[0]), "x", goal, note))
        for prompt, runs in zip(prompts, played, strict=True) if len(prompts) > 1 else ():
            ratio = Spread.of(turn[0].decode_ms / turn[way].decode_ms for turn in runs)
            found.append(Line(f"  {prompt.name}", ratio, "x", note=_counts([runs[-1][way]])))
    return found


def _counts(runs: Sequence[Run]) -> str:
    tokens, rounds = sum(len(run.ids) - 1 for run in runs), sum(run.rounds for run in runs)
    each = tokens / rounds if rounds else 1.0
    return f"{sum(len(run.ids) for run in runs)} tokens, {each:.1f} a round"
