"""What a request leaves of each next token to the model: penalties, a grammar, a budget of thoughts.

Knows nothing of what guides want, nor of passes or lanes.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Protocol

import numpy as np

from tandem.tree import DraftTree


class Guide(Protocol):
    """Belongs to one lane, whose prompt it was made with.

    What it does to a row is a function of the logits and of the text before it, `said` included: tokens of a draft that
    the walk has taken, behind those that `extend` brought. Which tokens were guessed, or verified in which pass, does
    not show. One that cannot go on raises RequestError, which ends its lane and no other.
    """

    def extend(self, tokens: Sequence[int]) -> None:
        """More of the answer, committed; often what was said, and one token more."""
        ...

    def changes(self, said: Sequence[int]) -> bool:
        """Whether the row behind the text and `said` is anything but the model's own."""
        ...

    def keeps(self, token: int, said: Sequence[int]) -> bool:
        """Whether `token`, the lowest id among that row's largest logits, is sure to stay it."""
        ...

    def applied(self, logits: np.ndarray, said: Sequence[int]) -> np.ndarray:
        """That row's logits fp32 [V] as they are to be drawn from; `logits` stay as they are."""
        ...

    def cut(self, tree: DraftTree) -> DraftTree:
        """`tree` without nodes that no draw could follow, the anchor kept, and with some that every draw will.

        It spares rows and rounds, and changes no text.
        """
        ...


GuideMaker = Callable[[Sequence[int], Collection[int]], Guide]
"""Makes a lane's guide from its prompt and its stop ids."""
