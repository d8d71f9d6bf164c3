"""What speculation brings where drafts are right as often as they are told, whatever the model's weights are.

A round of the engine as it serves: a tree of 16 rows is verified, its true path walked and committed, the host's part
included. The tree comes from the plain text, so that 3.6 drafted tokens are accepted on average and 4.6 committed. What
a drafter would have cost is paid by asking the one that the bundle has, and leaving its guesses.
"""

from __future__ import annotations

import gc
import random
from collections.abc import Callable
from typing import Any

from bench.gpu.context import Context, Opened
from bench.gpu.figures.passes import named
from bench.gpu.passes import SEED, Answer, answer, interleaved, prompt
from bench.gpu.shapes import HYBRID27B
from figure import Figure, Line
from spread import Goal, Spread
from tandem.keys import Kind
from tandem.runtime.checks.forced import FixedWidth
from tandem.runtime.drafters.base import WORDED, model_of
from tandem.runtime.drafters.scripted import Guess, ScriptedDrafter
from tandem.tree import DraftTree

ROWS = 16
ACCEPTED = (0, 0, 1, 1, 1, 2, 2, 2, 3, 3, 3, 4, 4, 4, 5, 5, 6, 7, 8, 11)
"""Drafted tokens that are right, round by round: 3.6 on average, spread as those of drafters are."""
LINE = 8
"""Tokens of a tree's longest line at least, right or wrong; the other nodes hang beside it."""
CYCLE = sum(ACCEPTED) + len(ACCEPTED)
"""Tokens that as many rounds commit."""
CONTEXT, CYCLES = 512, 3
SPEED_UP, EFFICIENCY = Goal(3.6, 4.1), Goal(0.78, 0.9)


class Scripted(FixedWidth):
    """Takes what the script says, whatever else is proposed."""

    def __init__(self) -> None:
        super().__init__(ROWS, "tree")

    def _pick(self, trees: list[DraftTree]) -> DraftTree:
        return next((tree for tree in trees if tree.sources[-1] == "scripted"), DraftTree.root(0))


def schedule() -> list[Guess]:
    """A draft of ROWS - 1 nodes for each of ACCEPTED, in an order of its own."""
    rights = random.Random(SEED).sample(ACCEPTED, len(ACCEPTED))
    lines = [max(LINE, right + 1) for right in rights]
    return [Guess(right, line - right, ROWS - 1 - line) for right, line in zip(rights, lines, strict=True)]


def forced(context: Context, name: str = HYBRID27B.name) -> Figure:
    """Forced rounds over plain steps of the same text, turn by turn.

    With t tokens a round, a round of r ms and a plain step of s: the speed-up is t s / r, and the efficiency of the
    round s / r, what is left of t. The goals are for rounds that pay a drafter, or for all where the bundle has none.
    """
    figure = Figure(named("forced", name), f"rounds of {ROWS} rows that commit 4.6 tokens, over plain steps, {name}")
    opened = context.open(name)
    opened.passes.forget()
    gc.collect()
    gc.freeze()  # as in a server, which need not look through a framework's objects
    text, own = answered(opened), model_of(opened.bundle.geometry)
    ways: dict[str, dict[str, Any]] = {"plain": {}, "forced": script(opened, text)}
    if own:
        ways[f"forced, {WORDED[own]} asked"] = {**script(opened, text), "models": True}
    found: dict[str, list[Answer]] = {way: [] for way in ways}
    spreads = interleaved(
        {way: _playing(opened, way, how, found) for way, how in ways.items()}, min(4, context.repeats)
    )
    plain = spreads["plain"]
    figure.identical = all(each.ids == text.ids for answers in found.values() for each in answers)
    figure.lines = [Line(way, Spread.of([1e3 / ms for ms in taken.runs]), "tok/s") for way, taken in spreads.items()]
    figure.lines.append(Line("a plain step", plain, "ms"))
    for way in list(ways)[1:]:
        paid, each, ratio = way == list(ways)[-1], tokens_a_round(found[way][-1]), plain.over(spreads[way])
        figure.lines += [
            Line(f"{way}: a round", spreads[way].times(each), "ms", note=f"{each:.2f} tokens"),
            Line(f"{way}: over plain", ratio, "x", SPEED_UP if paid else None),
            Line(f"{way}: efficiency", ratio.times(1 / each), "x", EFFICIENCY if paid else None),
        ]
    if own:
        figure.lines.append(Line(f"{way}: its drafts, a round", draft_ms(figure, found[way]), "ms"))
    else:
        figure.absent.append("what a draft costs: the bundle has no drafter")
    return figure


def draft_ms(figure: Figure, answers: list[Answer]) -> Spread:
    """Milliseconds of drafts a round, what they read first left out; says so where the drafter was given up."""
    if lost := sum(any(each.meter.lost.values.values()) for each in answers):
        figure.absent.append(f"what drafts cost in {lost} of {len(answers)} answers: the drafter was given up there")
    return Spread.of([1e3 * each.meter.draft_seconds.values[Kind.DRAFT] / each.stats.rounds for each in answers[1:]])


def script(opened: Opened, text: Answer) -> dict[str, Any]:
    """Arguments of `Engine` that draft `text` as `schedule` has it."""
    vocab_size = opened.bundle.geometry.vocab_size
    answers = {prompt(opened.executor, CONTEXT): text.ids}
    return {"drafters": lambda: ScriptedDrafter(answers, schedule(), vocab_size, SEED)}


def tokens_a_round(found: Answer) -> float:
    """Of the decoding: the first token is the prefill's."""
    return (len(found.ids) - 1) / found.stats.rounds


def answered(opened: Opened, **how: Any) -> Answer:
    """As many tokens as CYCLES bring."""
    return answer(opened.executor, opened.bundle.prices, CONTEXT, 1 + CYCLES * CYCLE, **how)


def _playing(opened: Opened, way: str, how: dict[str, Any], found: dict[str, list[Answer]]) -> Callable[[], float]:
    """Measures milliseconds a token of an answer, which is kept in `found`."""

    def play() -> float:
        router = {"router": Scripted()} if how else {}  # one that has seen no lane
        found[way].append(answered(opened, **how, **router))
        return found[way][-1].ms

    return play
