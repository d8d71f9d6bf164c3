"""Draws a crowd of requests: what is asked, when it comes, what ends it, who hangs up and when.

The same seed draws the same crowd, wave by wave. Knows nothing of engines.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from tandem.artifacts.io import Geometry
from tandem.runtime.request import Penalties, Sampling

DISTINCT = 48
"""Things asked: their plain answers are known, so that a check of thousands stays cheap."""
MOST_TOKENS = 24
CHUNKS = (5, 16, 64)
"""Rows that a prompt takes of a pass, besides a whole pass."""
PACES = ((0, 0, 0, 0, 0, 1), (0, 0, 0, 1, 1), (0, 0, 1, 1, 2), (0, 0, 2, 4, 9))
"""Rounds from one request to the next: a wave floods the engine, keeps it full, or leaves it idle now and then."""
SAMPLINGS = (
    Sampling(temperature=0.8, top_p=0.95, seed=2026),
    Sampling(temperature=1.0, seed=7),
    Sampling(temperature=0.7, top_k=20, min_p=0.02, seed=2**63 + 11),
)
PENALTIES = (
    Penalties(repetition=1.2),
    Penalties(presence=0.4, frequency=0.6, logit_bias=((1, 2.5), (3, -1.5))),
    Penalties(repetition=0.9, no_repeat_ngram_size=3),
)


@dataclass(frozen=True, slots=True)
class Ask:
    """All that an answer depends on. `name` says how the prompt came about."""

    name: str
    prompt: tuple[int, ...]
    sampling: Sampling
    penalties: Penalties

    def __str__(self) -> str:
        how = "greedy" if self.sampling.temperature == 0 else f"sampled with seed {self.sampling.seed}"
        return f"{self.name}, {how}" + ("" if self.penalties.neutral else f", {self.penalties}")


class Stage(StrEnum):
    """How far a request has come."""

    QUEUED = "queued"
    PREFILL = "prefill"
    DECODING = "decoding"


@dataclass(frozen=True, slots=True)
class HangUp:
    """A cancel, `after` so many rounds in its stage, or ids while decoding; `within` a pass or between two.

    One whose request has come further than its stage, because there was no wait, comes at once.
    """

    stage: Stage
    after: int
    within: bool


@dataclass(frozen=True, slots=True)
class Visit:
    """One request of the crowd, `due` in the wave's round of that number.

    `stop_at` makes the id at that index of the plain answer a stop id.
    """

    number: int
    ask: Ask
    max_tokens: int
    stop_at: int | None
    speculate: bool
    due: int
    hang_up: HangUp | None

    def __str__(self) -> str:
        parts = [str(self.ask), f"at most {self.max_tokens} ids"]
        parts += [] if self.stop_at is None else [f"id {self.stop_at} of the plain answer stops it"]
        parts += [] if self.speculate else ["no drafts"]
        if self.hang_up:
            where = "within a pass" if self.hang_up.within else "between passes"
            parts.append(f"cancelled {where}, {self.hang_up.stage} and {self.hang_up.after} on")
        return f"request {self.number} ({'; '.join(parts)})"


def chunks(geometry: Geometry) -> tuple[int, ...]:
    """Prefill sizes to serve with."""
    return tuple(sorted({min(chunk, geometry.max_rows) for chunk in (*CHUNKS, geometry.max_rows)}))


def lengths(geometry: Geometry) -> tuple[int, ...]:
    """Prompt lengths from a token to several chunks of each size, around pages too; the longest ends the context."""
    page, most = geometry.page_tokens, min(2 * geometry.max_rows + 5, geometry.context_length - 3)
    several = [3 * chunk + 2 for chunk in chunks(geometry)]
    found = [1, 2, 3, 5, 6, 8, 15, 16, 17, 24, 31, page - 1, page, page + 1, *several, most]
    return tuple(sorted({max(1, min(length, most)) for length in found}))


def draw_asks(prompts: Mapping[str, Sequence[int]], geometry: Geometry, seed: int) -> list[Ask]:
    """DISTINCT asks over texts of `prompts`. Half of them begin where their text does, so many share a prefix."""
    chance, sizes, asks = random.Random(f"asks {seed}"), lengths(geometry), list[Ask]()
    for number in range(DISTINCT):
        name, length = chance.choice(list(prompts)), sizes[number % len(sizes)]
        text, start = prompts[name], 0 if number % 2 else chance.randrange(len(prompts[name]))
        ids = [text[(start + i) % len(text)] for i in range(length)]
        if chance.random() < 0.5:  # the same beginning, another end
            ids[-1] = chance.randrange(geometry.vocab_size)
        sampling = Sampling() if chance.random() < 0.5 else chance.choice(SAMPLINGS)
        penalties = chance.choice(PENALTIES) if chance.random() < 0.3 else Penalties()
        asks.append(Ask(f"{length} ids of '{name}' from {start}, the last {ids[-1]}", tuple(ids), sampling, penalties))
    return asks


def draw_wave(asks: Sequence[Ask], wave: int, first: int, count: int, seed: int) -> list[Visit]:
    """`count` visits numbered from `first` on, in the order of their coming."""
    chance, due, visits = random.Random(f"wave {wave} of {seed}"), 0, list[Visit]()
    weights = [1 / (1 + len(ask.prompt) / 16) for ask in asks]  # short ones most often
    pace = chance.choice(PACES)
    for number in range(first, first + count):
        (ask,) = chance.choices(asks, weights)
        due += chance.choice(pace)
        max_tokens = max(chance.randint(1, MOST_TOKENS) for _ in range(2))  # long ones most often
        stop_at = chance.randrange(MOST_TOKENS) if chance.random() < 0.25 else None
        speculate = chance.random() < 0.85
        visits.append(Visit(number, ask, max_tokens, stop_at, speculate, due, _hang_up(chance, max_tokens)))
    return visits


def _hang_up(chance: random.Random, max_tokens: int) -> HangUp | None:
    """For one visit of three."""
    stage, after, within = chance.choice(list(Stage)), chance.randrange(4), chance.random() < 0.4
    if chance.random() >= 1 / 3:
        return None
    if stage is Stage.DECODING:
        after = chance.randint(1, max_tokens)
    return HangUp(stage, after, within)
