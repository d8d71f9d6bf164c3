"""How many thoughts an answer may have: what the client says, as a count or as an effort, and what the server says.

Knows nothing of tokens, templates or HTTP.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Effort(StrEnum):
    """OpenAI's words, and the share of an answer's tokens that thoughts may take by them, in percent."""

    NONE = "none"
    MINIMAL = "minimal"
    LOW = "low"
    MEDIUM = "medium"
    HIGH = "high"
    XHIGH = "xhigh"


PERCENT = {
    Effort.NONE: 0,
    Effort.MINIMAL: 10,
    Effort.LOW: 20,
    Effort.MEDIUM: 50,
    Effort.HIGH: 80,
    Effort.XHIGH: 95,
}
"""A share and no count, so that some of the answer is always left for what the thoughts were for."""


@dataclass(frozen=True, slots=True)
class Wish:
    """What a client says of an answer's thoughts; None says nothing."""

    max_tokens: int | None = None
    effort: Effort | None = None

    @property
    def neutral(self) -> bool:
        """Whether a model that does not think honours it."""
        return self.max_tokens is None and self.effort in (None, Effort.NONE)


def smallest(wish: Wish, server: int | None, max_tokens: int) -> int | None:
    """The budget of an answer of at most `max_tokens`: the smallest that was named, None if none was.

    A share is rounded down.
    """
    share = None if wish.effort is None else max_tokens * PERCENT[wish.effort] // 100
    return min((budget for budget in (wish.max_tokens, share, server) if budget is not None), default=None)
