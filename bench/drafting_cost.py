"""What a round's drafting costs the host: trees of a lattice and of lookup, built, joined, cut, learned of.

No model runs. Prints medians in microseconds for one lane; say so where others compute beside it.
"""

from __future__ import annotations

import random
import statistics
import sys
from pathlib import Path
from time import perf_counter

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent))  # PYTHONSAFEPATH leaves it out

from machine import describe
from tandem.prices import PriceModel
from tandem.runtime.drafters.block import LEAST
from tandem.runtime.drafters.lattice import Lattice
from tandem.runtime.drafters.lookup import LookupDrafter
from tandem.runtime.router.staircut import StairCut
from tandem.tree import DraftTree

SOURCES = {
    "lookup": ("lookup",),
    "lattice": ("lattice",),
    "both": ("lookup", "lattice"),
    "served": ("lookup", "router", "lattice"),  # a lattice only where the router wants one beside what lookup has
}
SLOTS, TOP, ROUNDS = 15, 16, 1000
STAIRS = {"1": 10.0, "8": 10.5, "9": 11.0, "16": 11.0, "17": 12.5, "24": 12.5, "25": 14.0, "32": 14.0}
PRICES = {"1024": dict.fromkeys(("extend", "verify-chain", "verify-tree"), STAIRS)}


def main() -> None:
    print(f"{describe()}; microseconds a round of one lane, medians of {ROUNDS}")
    text = copied_text()
    for name, sources in SOURCES.items():
        built, routed = rounds(text, sources)
        print(f"  {name:<8} trees {built:4.0f}   router {routed:4.0f}   together {built + routed:4.0f}")


def copied_text() -> list[int]:
    """Tokens at random, and the same once more with one in forty changed."""
    chance = random.Random(1)
    first = [chance.randrange(30_000) for _ in range(2 * ROUNDS)]
    return first + [chance.randrange(30_000) if not chance.randrange(40) else token for token in first]


def rounds(text: list[int], sources: tuple[str, ...]) -> tuple[float, float]:
    """What building trees and what routing them takes, in the second half of `text`, whose next tokens are known."""
    lookup, router, begin = LookupDrafter(), StairCut(PriceModel(PRICES)), len(text) // 2
    lookup.begin(text[:begin])
    router.open(0)
    built, routed = list[float](), list[float]()
    for place in range(begin, begin + ROUNDS):
        lattice = guesses(text, place)
        began = perf_counter()
        trees = lookup.propose(31) if "lookup" in sources else []
        asking = perf_counter()
        asks = "router" not in sources or router.wants_model([trees], [place], 32, [0], "block")
        asked = perf_counter()
        if "lattice" in sources and asks:
            trees.append(Lattice(text[place - 1], *lattice).tree(31, "nodes", LEAST))
        drafted = perf_counter()
        chosen = router.choose([trees], [place], 32, [0]) if trees else []
        cut = perf_counter()
        committed = accepted(chosen[0], text[place:]) if chosen else [text[place]]
        settling = perf_counter()
        if trees:
            router.settle([committed])
        routed.append(asked - asking + cut - drafted + perf_counter() - settling)
        built.append(drafted - asked + asking - began)
        lookup.observe([text[place]])
    return 1e6 * statistics.median(built), 1e6 * statistics.median(routed)


def guesses(text: list[int], place: int) -> tuple[np.ndarray, np.ndarray, list[int]]:
    """A lattice whose walk is often right at first and seldom later."""
    chance = np.random.default_rng(place)
    candidates = chance.integers(30_000, 60_000, (SLOTS, TOP))
    scores = chance.normal(0, 2, (SLOTS, TOP, TOP)).astype(np.float32)
    candidates[:, 0] = text[place : place + SLOTS]
    scores[:, :, 0] += 4.0 - 0.25 * np.arange(SLOTS)[:, None]
    walk, before = list[int](), 0
    for slot in range(SLOTS):
        before = int(scores[slot, before].argmax())
        walk.append(before)
    return candidates, scores, walk


def accepted(tree: DraftTree, ahead: list[int]) -> list[int]:
    """What a verify of `tree` commits."""
    node, count = 0, 1
    while (child := tree.follow(node, ahead[count - 1])) is not None:
        node, count = child, count + 1
    return ahead[:count]


if __name__ == "__main__":
    main()
