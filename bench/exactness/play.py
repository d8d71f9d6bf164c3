"""Turns: prompts answered plainly, one by one, then together and speculatively, and both compared id by id.

A turn's prompts, way and guesses follow from its number. Imports no framework.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from random import Random
from typing import Any

from exactness.ways import WAYS, Way, prices_of
from sides.tandem_bundle import Collected
from tandem.keys import MAX_TREE_ROWS
from tandem.prices import PriceModel
from tandem.runtime.checks.lab import pages_for
from tandem.runtime.checks.quality import GRAM
from tandem.runtime.drafters.base import Drafter
from tandem.runtime.engine import Engine
from tandem.runtime.executor.base import Executor
from tandem.runtime.request import Request
from tandem.runtime.round import Router

MAX_LANES = 4
SHORTEST, LONGEST = 8, 400
"""Tokens of a prompt."""


@dataclass(frozen=True, slots=True)
class Settings:
    """`answer` tokens at most behind each prompt, less where a stop id ends it; up to `lanes` prompts a turn."""

    answer: int
    lanes: int
    longest: int

    @classmethod
    def fitting(cls, context_length: int, max_lanes: int, answer: int) -> Settings:
        """As wanted, or as much of it as a short context has room for."""
        answer = min(answer, context_length // 2)
        longest = min(LONGEST, context_length - answer - MAX_TREE_ROWS)
        return cls(answer, min(MAX_LANES, max_lanes), max(SHORTEST, longest))

    def pages(self, page_tokens: int) -> int:
        return pages_for(self.longest + self.answer + MAX_TREE_ROWS, page_tokens, self.lanes)


@dataclass(frozen=True, slots=True)
class Result:
    """What a turn gave: ids compared and differing, rounds and drafted nodes of the speculative answers, how many runs
    of four tokens the plain ones have and how many of them are new, and in words the first place that differs."""

    turn: int
    way: str
    answers: int
    tokens: int
    rounds: int
    drafted: int
    differing: int
    grams: int
    new_grams: int
    first: str = ""

    def record(self) -> dict[str, Any]:
        return asdict(self)


class Play:
    """Turns over one executor; `texts` are ids that prompts are cut from, `prices` the bundle's own."""

    def __init__(
        self,
        executor: Executor,
        settings: Settings,
        texts: Sequence[Sequence[int]],
        stop_ids: frozenset[int],
        prices: PriceModel,
    ) -> None:
        self._executor, self._settings, self._stop_ids, self._prices = executor, settings, stop_ids, prices
        self._texts = [ids for ids in texts if len(ids) > SHORTEST and max(ids) < executor.geometry.vocab_size]
        assert self._texts, "the tokenizer fits the vocabulary"
        self._sizes = [len(ids) for ids in self._texts]

    def turn(self, number: int) -> Result:
        """Plays the turn of that number."""
        way, prompts = WAYS[number % len(WAYS)], self.prompts(number)
        plain = [self._serve([prompt], None, "staircut", PriceModel())[0] for prompt in prompts]
        answers = {prompt: sink.ids for prompt, sink in zip(prompts, plain, strict=True)}
        drafters = way.drafters(answers, self._executor.geometry.vocab_size, len(prompts), number)
        found = self._serve(prompts, drafters, way.router(), prices_of(way, self._prices))
        return compare(number, way, [sink.ids for sink in plain], found)

    def prompts(self, number: int) -> list[tuple[int, ...]]:
        """One to `lanes` pieces of texts, of any length that there may be."""
        random, most = Random(number), self._settings.longest
        pieces = []
        for text in random.choices(self._texts, self._sizes, k=1 + number // len(WAYS) % self._settings.lanes):
            length = random.randint(SHORTEST, min(most, len(text)))
            start = random.randint(0, len(text) - length)
            pieces.append(tuple(text[start : start + length]))
        return pieces

    def _serve(
        self,
        prompts: Sequence[tuple[int, ...]],
        drafters: Callable[[], Drafter] | None,
        router: Router | str,
        prices: PriceModel,
    ) -> list[Collected]:
        """The greedy answers, in one engine with a lane for each."""
        engine = Engine(self._executor, drafters=drafters, prices=prices, router=router, max_lanes=len(prompts))
        sinks = [Collected() for _ in prompts]
        for prompt, sink in zip(prompts, sinks, strict=True):
            engine.submit(Request(prompt, self._settings.answer, stop_ids=self._stop_ids), sink)
        while engine.step():
            pass
        if error := next((sink.error for sink in sinks if sink.error), None):
            raise error
        return sinks


def compare(number: int, way: Way, plain: Sequence[list[int]], found: Sequence[Collected]) -> Result:
    """Counts; what one text has behind the other's end differs."""
    differing, first = 0, ""
    for lane, (wanted, sink) in enumerate(zip(plain, found, strict=True)):
        pairs = [*zip(wanted, sink.ids, strict=False)]
        astray = [i for i, (one, other) in enumerate(pairs) if one != other]
        astray += range(len(pairs), max(len(wanted), len(sink.ids)))
        differing += len(astray)
        if astray and not first:
            first = f"turn {number} ({way.name}, {len(plain)} lanes), lane {lane}: token {astray[0]} of the answer"
    grams = [[tuple(ids[i : i + GRAM]) for i in range(len(ids) - GRAM + 1)] for ids in plain]
    return Result(
        turn=number,
        way=way.name,
        answers=len(plain),
        tokens=sum(map(len, plain)),
        rounds=sum(sink.stats.rounds for sink in found),
        drafted=sum(sink.stats.drafted for sink in found),
        differing=differing,
        grams=sum(map(len, grams)),
        new_grams=sum(len(set(some)) for some in grams),
        first=first,
    )
