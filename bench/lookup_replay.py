"""Tokens a round of the lookup on texts that no model says: code and pages as they are, and files that are edited.

A round proposes, and of its candidates the one that is right for longest is accepted, at no price. Beside the drafter
as it is served stand lines of 15 tokens at most, and those with the deep chain of the engine that this one learned
from: a line of up to 31 tokens behind two rounds that committed all they verified. Prints a table.
"""

from __future__ import annotations

import argparse
import random
import sys
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))  # PYTHONSAFEPATH leaves it out

from copy_rates import PROMPT, Shelf, replay, texts
from tandem.artifacts.suffix import open_corpus, read_meta
from tandem.runtime.drafters.lookup import LookupDrafter
from tandem.runtime.drafters.rates import CopyRates
from tandem.tree import DraftTree

NARROW = 15
DEEP_AFTER, DEEP_MATCH = 2, 8


class Narrow(LookupDrafter):
    """Trees and lines of NARROW nodes at most."""

    def propose(self, max_nodes: int) -> list[DraftTree]:
        return [tree.truncate(1 + NARROW) for tree in super().propose(max_nodes)]


class DeepChain(LookupDrafter):
    """The same, but the whole line alone where a long match goes on and on."""

    wide = 0  # rounds in a row that committed their whole width

    def propose(self, max_nodes: int) -> list[DraftTree]:
        trees, witnesses = super().propose(max_nodes), self._witnesses
        if trees and self.wide >= DEEP_AFTER and witnesses.agreed >= DEEP_MATCH and trees[-1].num_drafted > NARROW:
            votes = witnesses.poll(witnesses.all(), 0)
            if 2 * votes[0][0] >= sum(mass for mass, _, _ in votes):
                return trees[-1:]
        return [tree.truncate(1 + NARROW) for tree in trees]

    def observe(self, tokens: list[int]) -> None:
        self.wide = self.wide + 1 if len(tokens) > NARROW else 0
        super().observe(tokens)


def edited(text: list[int], chance: random.Random) -> tuple[list[int], int]:
    """Behind its prompt: a version of itself with other tokens here and there, which an edit starts from."""
    before = list(text)
    for _ in range(len(text) // 150):
        place = chance.randrange(len(before) - 8)
        before[place : place + chance.randint(1, 5)] = chance.choices(text, k=chance.randrange(5))
    return before + text, len(before)


def measure(make: Callable[[CopyRates], LookupDrafter], found: list[tuple[list[int], int]]) -> float:
    """Tokens a round over texts with the lengths of their prompts; what one teaches the next one finds."""
    rates, rounds, tokens = CopyRates(), 0, 0
    for text, prompt in found:
        for _, committed in replay(make(rates), text, prompt):
            rounds, tokens = rounds + 1, tokens + len(committed)
    return tokens / rounds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("texts", type=Path, nargs="+", help="corpora of texts that the other one does not hold")
    parser.add_argument("--corpus", type=Path, required=True)
    parser.add_argument("--most", type=int, default=40, help="texts of each")
    options = parser.parse_args()
    table = open_corpus(options.corpus, read_meta(options.corpus).tokenizer).with_heads()
    ways: dict[str, Callable[[CopyRates], LookupDrafter]] = {
        "as served": LookupDrafter,
        "15 at most": Narrow,
        "deep chain": DeepChain,
        "with the corpus": lambda rates: LookupDrafter(rates, shelves=(Shelf(table),)),
    }
    print(f"{'tokens a round':<28}" + "".join(f"{name:>17}" for name in ways))
    chance = random.Random(0)
    for path in options.texts:
        found = [text for text in texts(path, 2500) if len(text) > 1200]
        found = found[:: max(1, len(found) // options.most)][: options.most]
        for name, work in (
            (path.name, [(text, PROMPT) for text in found]),
            (f"{path.name}, edited", [edited(text, chance) for text in found]),
        ):
            print(f"{name:<28}" + "".join(f"{measure(make, work):>17.2f}" for make in ways.values()), flush=True)


if __name__ == "__main__":
    main()
