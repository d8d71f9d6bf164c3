"""Lookup against plain decoding of the same bundle: a copy, edits of a file, chats and requests for code.

Both give the same ids, which is checked. A chat ends where the model ends it, as it would for a user.
"""

from __future__ import annotations

from figure import Figure, Line
from figures.context import Context
from prompts import Prompt
from sides.process import Run, Side, disturbance
from spread import Goal, Spread

NEVER_SLOWER = Goal(0.98, 1.0)
EDITS = Goal(1.3, 1.6)
COPIES = {"bf16": Goal(2.5, 4.0), "int8": Goal(3.0, 5.0)}


def copy(context: Context, profile: str) -> Figure:
    title = "a source file begun again, lookup against plain"
    return measure(context, profile, "copy", title, [context.prompts.copy()], 2, COPIES.get(profile))


def edit(context: Context, profile: str) -> Figure:
    title = "a chat that asks to edit a file of 60 lines, lookup against plain"
    return measure(context, profile, "edit", title, context.prompts.edits(), 3, EDITS)


def chat(context: Context, profile: str) -> Figure:
    title = "chats, lookup against plain"
    return measure(context, profile, "chat", title, context.prompts.chats(), 2, NEVER_SLOWER)


def code(context: Context, profile: str) -> Figure:
    title = "requests for code, lookup against plain"
    return measure(context, profile, "code", title, context.prompts.code(), 2, NEVER_SLOWER)


def measure(
    context: Context, profile: str, name: str, title: str, prompts: list[Prompt], length: int, goal: Goal | None
) -> Figure:
    """Plain and lookup follow each other on every prompt, `length` times the usual tokens at most."""
    figure = Figure(f"{name}-{profile}", f"{title}, {profile}")
    pairs: list[list[tuple[Run, Run]]] = [[] for _ in prompts]
    with context.sides(profile, []) as (side, _, figure.absent):

        def play() -> None:
            for prompt, found in zip(prompts, pairs, strict=True):
                plain, lookup = (generate(side, prompt, length * context.tokens, way) for way in (False, True))
                found.append((plain, lookup))

        def forget() -> None:
            side.runs.clear()
            for found in pairs:
                found.clear()

        context.turns(figure.name, play, forget)
        figure.disturbed = disturbance([side])
    figure.identical = all(plain.ids == lookup.ids for found in pairs for plain, lookup in found)
    figure.lines = lines(prompts, pairs, goal)
    return figure


def generate(side: Side, prompt: Prompt, num_tokens: int, speculate: bool) -> Run:
    return side.run(prompt.ids, num_tokens, speculate=speculate, stop_ids=prompt.stop_ids)


def lines(prompts: list[Prompt], pairs: list[list[tuple[Run, Run]]], goal: Goal | None) -> list[Line]:
    """All prompts together, time over time turn by turn; then each prompt alone."""
    turns = list(zip(*pairs, strict=True))
    tokens = [sum(len(plain.ids) - 1 for plain, _ in turn) for turn in turns]
    times = [[sum(pair[way].decode_ms for pair in turn) for turn in turns] for way in (0, 1)]
    plain, lookup = (Spread.of(1e3 * n / ms for n, ms in zip(tokens, way, strict=True)) for way in times)
    found = [Line("plain", plain, "tok/s"), Line("lookup", lookup, "tok/s")]
    found.append(Line("lookup over plain", lookup.over(plain), "x", goal))
    if len(prompts) > 1:
        for prompt, runs in zip(prompts, pairs, strict=True):
            ratio = Spread.of(plain.decode_ms / lookup.decode_ms for plain, lookup in runs)
            found.append(Line(f"  {prompt.name}", ratio, "x", note=_counts(runs[-1][1])))
    else:
        found[-1] = Line("lookup over plain", lookup.over(plain), "x", goal, _counts(pairs[0][-1][1]))
    return found


def _counts(run: Run) -> str:
    return f"{len(run.ids)} tokens, {run.tokens_per_round:.1f} a round"
