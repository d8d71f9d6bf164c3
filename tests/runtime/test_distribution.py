"""Draws in the long run: joint frequencies of a known target under drafts, and noise that depends on nothing.

Seeds are fixed, so that a test passes always or never; with any others each fit would fail once in a thousand times.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from tandem.prices import PriceModel
from tandem.runtime.acceptance import walk
from tandem.runtime.checks.goodness import fit
from tandem.runtime.drafters.base import Drafter
from tandem.runtime.drafters.lookup import lookup_drafters
from tandem.runtime.drafters.scripted import Guess, ScriptedDrafter
from tandem.runtime.engine import Engine
from tandem.runtime.noise import word
from tandem.runtime.request import Request, Sampling
from tandem.runtime.sampling import draw
from tests.fake_routers import EvenRouter
from tests.fakes import Recorder
from tests.toy import Stubborn, ToyExecutor

LEAST_P = 1e-3
FIRST = np.array([0.5, 0.3, 0.2])
SECOND = np.array([[0.1, 0.6, 0.3], [0.45, 0.1, 0.45], [0.8, 0.15, 0.05]])
"""Row t: the shares behind token t."""


@pytest.mark.parametrize(
    ("drafter", "draws"),
    [
        (Stubborn([2]), 20_000),
        (Stubborn([2, 2, 2, 2]), 20_000),
        (Stubborn([2, 0, 1, 2, 1], [0, 1, 1, 0, 0]), 6_000),
        (Stubborn([0, 1, 2], [0, 0, 0]), 6_000),
    ],
    ids=["k = 1", "k = 4", "tree", "every token"],
)
def test_bug_25_pairs_come_as_often_as_the_target_says(drafter: Stubborn, draws: int) -> None:
    """The token in place of a rejected one comes from the row before it, and none is left out or drawn twice."""
    logits = np.log(np.vstack([SECOND, FIRST])).astype(np.float32)
    prompt, counts = 3, np.zeros((3, 3), np.int64)
    for seed in range(draws):
        text = [prompt]
        while len(text) < 3:
            drafter.begin(text)
            tree, at = drafter.tree(), len(text)

            def target(node: int, said: object, tree: object = tree, at: int = at, seed: int = seed) -> int:
                return draw(logits[tree.tokens[node]], Sampling(1.0), seed, at + len(said))

            text += walk(tree, target, ())[1]
        counts[text[1], text[2]] += 1
    assert fit(counts.reshape(-1), (FIRST[:, None] * SECOND).reshape(-1)).p > LEAST_P


def guided_by_another(seed: int) -> Callable[[], Drafter]:
    """Guesses what another seed's text would be: right as often as chance has it."""
    chance = np.random.default_rng(seed)

    def make() -> Drafter:
        guessed = chance.integers(0, 3, 99).tolist()
        return ScriptedDrafter({(0,): guessed}, [Guess(3), Guess(2, 1, 3), Guess(), Guess(5)], 3, seed)

    return make


@pytest.mark.parametrize(
    "drafters",
    [
        None,
        lambda: Stubborn([2]),
        lambda: Stubborn([1, 2, 0, 1]),
        lambda: Stubborn([1, 2, 0, 2, 0, 1], [0, 1, 1, 0, 4, 0]),
        guided_by_another(3),
        lookup_drafters(),
    ],
    ids=["none", "wrong", "chain", "tree", "by chance", "lookup"],
)
@pytest.mark.parametrize("temperature", [1.0, 0.6])
def test_texts_follow_the_target_under_every_drafter(
    drafters: Callable[[], Drafter] | None, temperature: float
) -> None:
    executor = ToyExecutor(np.log(SECOND))
    engine = Engine(executor, drafters=drafters, prices=PriceModel(), router=EvenRouter())
    sinks = [Recorder() for _ in range(24)]
    for seed, sink in enumerate(sinks):
        engine.submit(Request((0,), 90, Sampling(temperature, seed=seed)), sink)
    while engine.step():
        pass
    counts = np.zeros((3, 3), np.int64)
    for sink in sinks:
        np.add.at(counts, ([0, *sink.ids[:-1]], sink.ids), 1)
    shares = SECOND ** (1 / temperature)
    for token in range(3):
        assert fit(counts[token], shares[token] / shares[token].sum()).p > LEAST_P


def cells(seeds: range, positions: range, parts: int) -> np.ndarray:
    """Which of `parts` equal parts the noise lies in, [seed, position]."""
    return np.array([[word(seed, position) * parts >> 64 for position in positions] for seed in seeds])


@pytest.mark.parametrize("first", [0, 1_000_003, 2**63 - 50, -50])
def test_noise_of_one_place_tells_nothing_of_the_next(first: int) -> None:
    found = cells(range(first, first + 100), range(1, 101), 8)
    even = np.full(64, 1 / 64)
    for one, other in (
        (found[:, :-1:2], found[:, 1::2]),  # positions
        (found[:-1:2], found[1::2]),  # seeds
        (found[:-1:2, :-1], found[1::2, 1:]),  # both at once, as seed + position would have it
        (found[:50], found[50:]),  # far apart
    ):
        assert fit(np.bincount((8 * one + other).reshape(-1), minlength=64), even).p > LEAST_P


def test_noise_is_even() -> None:
    found = cells(range(200), range(100), 100).reshape(-1)
    assert fit(np.bincount(found, minlength=100), np.full(100, 0.01)).p > LEAST_P
