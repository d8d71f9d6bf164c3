"""How text is drafted: by lookup as a server has it, or by drafters that know the text and err as often as told.

Knows nothing of prompts or of what is counted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from random import Random

from tandem.keys import MAX_TREE_ROWS
from tandem.prices import PriceModel
from tandem.runtime.checks.forced import FixedWidth
from tandem.runtime.drafters.base import Drafter
from tandem.runtime.drafters.lookup import lookup_drafters
from tandem.runtime.drafters.scripted import Guess, ScriptedDrafter
from tandem.runtime.round import Router

Answers = Mapping[tuple[int, ...], Sequence[int]]
"""Plain answers by prompt."""
ROUNDS = 509
"""Guesses of a drafter before they come round again."""


@dataclass(frozen=True, slots=True)
class Way:
    """A drafter and who decides what is verified. `chance` is that of each drafted token to be right, None for lookup;
    without a `shape` the bundle's prices decide."""

    name: str
    chance: float | None = None
    shape: str | None = None

    def drafters(self, answers: Answers, vocab_size: int, lanes: int, seed: int) -> Callable[[], Drafter]:
        """A factory, a drafter a lane."""
        if self.chance is None:
            return lookup_drafters()
        chance, most, seeds = self.chance, MAX_TREE_ROWS // lanes - 1, count(100 * seed)

        def make() -> Drafter:
            own = next(seeds)
            script = list(guesses(Random(own), chance, most, tree=self.shape == "tree"))
            return ScriptedDrafter(answers, script, vocab_size, own)

        return make

    def router(self) -> Router | str:
        """The name of the one that goes by prices, or one that takes all there is."""
        return FixedWidth(MAX_TREE_ROWS, self.shape) if self.shape else "staircut"


CHANCES = (0.0, 0.5, 0.8, 0.95, 1.0)
WAYS = (
    Way("lookup, as served"),
    Way("lookup, all of it", shape="tree"),
    *(Way(f"{chance:.0%} right, {shape}", chance, shape) for chance in CHANCES for shape in ("chain", "tree")),
)


def guesses(random: Random, chance: float, most: int, *, tree: bool) -> Iterator[Guess]:
    """ROUNDS drafts of 0 to `most` nodes, each token of the line right with `chance` up to the first that is not; in a
    `tree` a part of the nodes stands beside the line."""
    for _ in range(ROUNDS):
        nodes = random.randint(0, most)
        branches = random.randint(0, nodes) if tree else 0
        line = nodes - branches
        right = next((i for i in range(line) if random.random() >= chance), line)
        yield Guess(right, line - right, branches)


def prices_of(way: Way, served: PriceModel) -> PriceModel:
    """Those of the bundle where they decide; where they do not, none, so that forced passes teach them nothing."""
    return PriceModel() if way.shape else served
