"""The guide of an answer whose content, what follows its thoughts, has a guide of its own.

Knows nothing of what either wants.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tandem.runtime.guide import Guide
from tandem.runtime.thinking.guide import ThoughtsGuide
from tandem.tree import DraftTree


class AfterThoughts:
    """`thoughts` up to the end of the block and of its closing text, then `content`, which sees only what follows."""

    def __init__(self, thoughts: ThoughtsGuide, content: Guide) -> None:
        self._thoughts, self._content = thoughts, content

    def extend(self, tokens: Sequence[int]) -> None:
        said = self._followed(tokens)
        self._thoughts.extend(tokens)
        if said:
            self._content.extend(said)

    def changes(self, said: Sequence[int]) -> bool:
        followed = self._followed(said)
        return self._thoughts.changes(said) if followed is None else self._content.changes(followed)

    def keeps(self, token: int, said: Sequence[int]) -> bool:
        followed = self._followed(said)
        return self._thoughts.keeps(token, said) if followed is None else self._content.keeps(token, followed)

    def applied(self, logits: np.ndarray, said: Sequence[int]) -> np.ndarray:
        followed = self._followed(said)
        return self._thoughts.applied(logits, said) if followed is None else self._content.applied(logits, followed)

    def cut(self, tree: DraftTree) -> DraftTree:
        """By whichever has the next token; what a draft has behind the other's border is left as it is."""
        return self._thoughts.cut(tree) if self._followed(()) is None else self._content.cut(tree)

    def _followed(self, said: Sequence[int]) -> Sequence[int] | None:
        """The part of `said` behind the thoughts; None while they last."""
        count = self._thoughts.num_settled(said)
        return None if count is None else said[len(said) - count :]
