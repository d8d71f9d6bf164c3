"""Where a block of thoughts stands in an answer, token by token.

A block is what an answer has between `<think>` and `</think>`. It is open from the answer's first token, or opened by
the very beginning of the answer, and there is one at most: later tags are text. Tags are found in the joined bytes of
tokens, however many tokens they take and whatever else those hold. Knows nothing of budgets or engines.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

from tandem.runtime.reading.thoughts import BEGIN, END

TAIL_TOKENS = 64
"""Tokens of a prompt's end that are read: more than a tag and the white space behind it take."""


@dataclass(frozen=True, slots=True)
class Tags:
    """How a model marks its thoughts."""

    opening: str = BEGIN
    closing: str = END


class Phase(Enum):
    AHEAD = "ahead"
    """The answer has not begun but for part of a tag: it may still open a block."""

    OPEN = "open"
    """The next token is a thought, or the end of the block."""

    OVER = "over"
    """No thoughts come any more."""


class Place(NamedTuple):
    """Where an answer stands behind one of its tokens.

    `thoughts` counts the tokens behind the one that opened the block, `tokens` all of the answer so far, or up to the
    one that closed the block; `tail` is what a tag may have begun with.
    """

    phase: Phase
    thoughts: int = 0
    tokens: int = 0
    tail: bytes = b""

    @property
    def reasoning_tokens(self) -> int:
        """Tokens of the answer up to the one that closed the block, or so far; 0 while there is no block."""
        return 0 if self.phase is Phase.AHEAD else self.tokens


class BlockReader:
    """Follows blocks within `tags`; `bytes_of` gives what a token stands for."""

    def __init__(self, tags: Tags, bytes_of: Callable[[int], bytes]) -> None:
        self._opening, self._closing = tags.opening.encode(), tags.closing.encode()
        self._bytes_of = bytes_of

    def opened_by(self, prompt: Sequence[int]) -> bool:
        """Whether a prompt ends with the opening tag, white space aside."""
        end = b"".join(map(self._bytes_of, prompt[-TAIL_TOKENS:]))
        return end.rstrip().endswith(self._opening)

    @staticmethod
    def begin(in_thoughts: bool) -> Place:
        """Before an answer that begins `in_thoughts`, the block being open, or does not."""
        return Place(Phase.OPEN if in_thoughts else Phase.AHEAD)

    def after(self, place: Place, token: int) -> Place:
        """Behind one more token."""
        if place.phase is Phase.OVER:
            return place
        text = place.tail + self._bytes_of(token)
        if place.phase is Phase.OPEN:
            return self._within(text, place.thoughts + 1, place.tokens + 1)
        if text.startswith(self._opening):
            return self._within(text[len(self._opening) :], 0, place.tokens + 1)
        if self._opening.startswith(text):
            return Place(Phase.AHEAD, 0, place.tokens + 1, text)
        return Place(Phase.OVER)

    def _within(self, text: bytes, thoughts: int, tokens: int) -> Place:
        """In a block whose last bytes are `text`. The token that closes it is no thought."""
        if self._closing in text:
            return Place(Phase.OVER, thoughts - 1, tokens)
        return Place(Phase.OPEN, thoughts, tokens, text[-(len(self._closing) - 1) :])


class ThoughtCount:
    """How many tokens of one answer are reasoning, as they come."""

    def __init__(self, reader: BlockReader, in_thoughts: bool) -> None:
        self._reader, self._place = reader, reader.begin(in_thoughts)

    @property
    def tokens(self) -> int:
        return self._place.reasoning_tokens

    def add(self, ids: Iterable[int]) -> None:
        for token in ids:
            self._place = self._reader.after(self._place, token)
