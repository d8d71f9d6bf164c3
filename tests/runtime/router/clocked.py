"""Texts decoded by a made-up clock: passes, searches, choices and the rest of the host's part take what is said."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

from tandem.keys import Kind
from tandem.prices import PriceModel
from tandem.runtime.router.staircut import StairCut
from tandem.tree import DraftTree
from tests.runtime.router.drafts import line

Source = Callable[[int, random.Random], tuple[list[float], int] | None]
"""Given how many tokens are out: path chances that a drafter states and how many of its guesses are right; None where
it finds nothing."""


def table(step_ms: float, rises: dict[str, float] | None = None) -> dict[str, dict[str, dict[str, float]]]:
    """Prices of which a row count's are so many steps; as measured of the demo hybrid on two cores, if not given."""
    rises = rises or {"1": 1.0, "4": 1.03, "8": 1.34, "16": 2.6, "24": 4.0, "32": 5.4}
    passes = {rows: step_ms * steps for rows, steps in rises.items()}
    return {"1024": dict.fromkeys(("extend", "verify-chain", "verify-tree"), passes)}


@dataclass
class Host:
    """ms of the host's parts: of a search that finds nothing, of one with trees and choice behind it, of rounds behind
    the choice, plain and verified, and of a round that rests."""

    look: float = 0.007
    ask: float = 0.07
    plain: float = 0.02
    verified: float = 0.06
    rest: float = 0.002


@dataclass
class Clocked:
    """One lane at a time over a router that keeps what it learns, as a server does; texts start below 1,024 tokens."""

    step_ms: float
    host: Host
    router: StairCut
    prices: PriceModel
    random: random.Random
    slow: float = 1.0  # everything takes so many times as long as it should
    jitter: float = 0.05
    rest: int = 0

    @classmethod
    def over(cls, step_ms: float, host: Host | None = None, seed: int = 0, *, learn_cost: bool = True) -> Clocked:
        prices = PriceModel(table(step_ms))
        router = StairCut(prices, learn_cost=learn_cost)
        return cls(step_ms, host or Host(), router, prices, random.Random(seed))

    def text(self, source: Source, num_tokens: int, lane: int = 0) -> float:
        """Speed over plain decoding of a text of so many tokens."""
        ms = plain = 0.0
        true, out = PriceModel(table(self.step_ms), live=False), 0
        self.router.open(lane)
        self.rest = 0
        while out < num_tokens:
            took, count = self._round(source, out, true, lane)
            ms, out = ms + took * self.slow, out + count
            plain += count * (self.step_ms + self.host.plain) * self.slow
        self.router.close(lane)
        return plain / ms

    def _round(self, source: Source, out: int, true: PriceModel, lane: int) -> tuple[float, int]:
        """ms and tokens of a round."""
        host, context = self.host, 100
        self.rest = self.rest or self.router.rests(lane, context)
        rests = self.rest > 0
        self.rest -= rests
        found = None if rests else source(out, self.random)
        asked = host.rest if rests else host.ask if found else host.look
        tree, right = DraftTree.root(0), 0
        if found:
            stated, right = found
            tree = (self.router.choose([[line(stated)]], [context], 32, [lane]) or [tree])[0]
        accepted = min(right, tree.num_drafted)
        kind = Kind.VERIFY_CHAIN if tree.num_drafted else Kind.EXTEND
        noise = self.random.uniform(1 - self.jitter, 1 + self.jitter)
        passed = true.ms(0, kind, len(tree)) * noise
        behind = host.verified if tree.num_drafted else host.plain
        self.prices.observe(context, kind, len(tree), passed * self.slow)
        costs = [part * self.slow for part in (asked + passed + behind, asked, behind)]
        # The text goes on as the drafter guessed, as far as it is right, and then with another token.
        committed = [*range(10, 10 + accepted), 10 + accepted if accepted < right else 99]
        if found:
            self.router.settle([committed], *costs)
        elif not rests:
            self.router.passed([lane], [context], *costs)
        return asked + passed + behind, len(committed)
