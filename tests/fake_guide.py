"""A guide whose rule is a line long, for tests of what carries guides.

Knows nothing of engines.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np

from tandem.tree import DraftTree


def forbidden(text: Sequence[int], vocab_size: int) -> list[int]:
    """Ids that may not follow `text`: none behind an even id, else those that share its remainder by 3."""
    return [i for i in range(vocab_size) if i % 3 == text[-1] % 3] if text[-1] % 2 else []


class Remainders:
    """The guide of that rule. `cuts` False leaves drafts alone, as a guide may."""

    def __init__(self, prompt: Sequence[int], stop_ids: Collection[int], cuts: bool = True) -> None:
        self._text, self._cuts = list(prompt), cuts

    @classmethod
    def lax(cls, prompt: Sequence[int], stop_ids: Collection[int]) -> Remainders:
        return cls(prompt, stop_ids, cuts=False)

    def extend(self, tokens: Sequence[int]) -> None:
        self._text += tokens

    def changes(self, said: Sequence[int]) -> bool:
        return bool([*self._text, *said][-1] % 2)

    def keeps(self, token: int, said: Sequence[int]) -> bool:
        text = [*self._text, *said]
        return not (text[-1] % 2 and token % 3 == text[-1] % 3)

    def applied(self, logits: np.ndarray, said: Sequence[int]) -> np.ndarray:
        changed = logits.copy()
        changed[forbidden([*self._text, *said], len(logits))] = -np.inf
        return changed

    def cut(self, tree: DraftTree) -> DraftTree:
        if not self._cuts:
            return tree
        kept = [0]
        for node in range(1, len(tree)):
            above = tree.tokens[tree.parents[node]]
            if tree.parents[node] in kept and not (above % 2 and tree.tokens[node] % 3 == above % 3):
                kept.append(node)
        return tree.subset(kept)
