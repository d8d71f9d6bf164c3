"""A drafter that knows the answer and is told how well to guess, for checks of everything around it.

Knows nothing of why a guess is right.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from tandem.tree import DraftTree


@dataclass(frozen=True, slots=True)
class Guess:
    """One round's draft: `right` tokens of the text, then `wrong` others in a line, and `branches` wrong side nodes.

    All zero declines.
    """

    right: int = 0
    wrong: int = 0
    branches: int = 0


class ScriptedDrafter:
    """Guesses as `schedule` says, round by round and over again, from the `answers` to prompts.

    Side nodes hang anywhere and children stand in any order, as `seed` has it.
    """

    def __init__(
        self,
        answers: Mapping[tuple[int, ...], Sequence[int]],
        schedule: Iterable[Guess],
        vocab_size: int,
        seed: int = 0,
    ) -> None:
        self._answers, self._vocab_size = answers, vocab_size
        self._schedule = itertools.cycle(schedule)
        self._random = random.Random(seed)
        self._text: list[int] = []
        self._length = 0
        self._anchor = -1

    def begin(self, prompt: Sequence[int]) -> None:
        self._text = [*prompt, *self._answers.get(tuple(prompt), ())]
        self._length, self._anchor = len(prompt), prompt[-1]

    def observe(self, tokens: Sequence[int]) -> None:
        self._length, self._anchor = self._length + len(tokens), tokens[-1]

    def sync(self, rows: Sequence[int]) -> None:
        pass

    def end(self) -> None:
        pass

    def propose(self, max_nodes: int) -> list[DraftTree]:
        guess = next(self._schedule, Guess())
        line = list(self._text[self._length : self._length + guess.right])
        line += [self._other(self._length + len(line) + i) for i in range(guess.wrong)]
        if not line and not guess.branches:
            return []
        nodes: list[tuple[int, int]] = [(self._anchor, -1), *((token, i) for i, token in enumerate(line))]
        for _ in range(guess.branches):
            parent = self._random.randrange(len(nodes))
            depth = self._depth(nodes, parent)
            nodes.append((self._other(self._length + depth), parent))
        return [self._ordered(nodes).truncate(max_nodes + 1)]

    def _other(self, index: int) -> int:
        """Any id but the one at `index` of the text."""
        true = self._text[index] if index < len(self._text) else 0
        return (true + self._random.randrange(1, self._vocab_size)) % self._vocab_size

    @staticmethod
    def _depth(nodes: list[tuple[int, int]], node: int) -> int:
        depth = 0
        while node > 0:
            node, depth = nodes[node][1], depth + 1
        return depth

    def _ordered(self, nodes: list[tuple[int, int]]) -> DraftTree:
        """The same tree in depth-first pre-order."""
        tree = DraftTree.root(self._anchor)
        stack = [(0, -1, 1.0)]
        while stack:
            node, parent, score = stack.pop()
            place = 0
            if node:
                place = len(tree)
                tree.tokens.append(nodes[node][0])
                tree.parents.append(parent)
                tree.scores.append(score)
                tree.sources.append("scripted")
            children = [i for i, (_, above) in enumerate(nodes) if above == node]
            self._random.shuffle(children)
            stack.extend((child, place, score * 0.9) for child in children)
        return tree
