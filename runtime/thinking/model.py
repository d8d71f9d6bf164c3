"""How a served model thinks: its tags, the text that closes its thoughts, and what the server allows them.

Made once at load. Knows nothing of HTTP.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from tandem.errors import UsageError
from tandem.runtime.guide import Guide, GuideMaker
from tandem.runtime.text import TokenBytes
from tandem.runtime.thinking.block import BlockReader, Tags, ThoughtCount
from tandem.runtime.thinking.budget import Wish, smallest
from tandem.runtime.thinking.content import AfterThoughts
from tandem.runtime.thinking.guide import Closings, ThoughtsGuide
from tandem.runtime.thinking.watcher import Watcher

if TYPE_CHECKING:
    from tokenizers import Tokenizer

BARE_CLOSING = "\n</think>\n\n"
QWEN_CLOSING = (
    "\n\nConsidering the limited time by the user, I have to give the solution based on the thinking directly now."
    "\n</think>\n\n"
)
"""What Qwen3's makers have its models say when a budget is spent, as their technical report gives it."""
SWITCH = "enable_thinking"
"""The variable by which templates of Qwen3's kind leave thoughts out."""


def _unheard(reason: str) -> None:
    pass


@dataclass(frozen=True, slots=True)
class ThinkingModel:
    """`budget` bounds every answer's thoughts; with `conductor` a watcher closes those that loop.

    `closed` hears why a block was closed for the model.
    """

    reader: BlockReader
    closings: Closings
    budget: int | None = None
    conductor: bool = False
    closed: Callable[[str], None] = _unheard

    def guides(
        self, wish: Wish, max_tokens: int, content: Sequence[GuideMaker] = (), *, in_thoughts: bool
    ) -> tuple[GuideMaker, ...]:
        """For an answer of at most `max_tokens`, whose content `content` guides: what does both.

        Unless it begins `in_thoughts`, a guided answer has no block: its content begins at once.
        """
        budget = smallest(wish, self.budget, max_tokens)

        def bounded(closed: Callable[[str], None]) -> ThoughtsGuide:
            watcher = Watcher() if self.conductor else None
            return ThoughtsGuide(self.reader, in_thoughts, self.closings, budget=budget, watcher=watcher, closed=closed)

        def alone(prompt: Sequence[int], stop_ids: Collection[int]) -> Guide:
            return bounded(self.closed)

        def before(
            make: GuideMaker, closed: Callable[[str], None], prompt: Sequence[int], stops: Collection[int]
        ) -> Guide:
            return AfterThoughts(bounded(closed), make(prompt, stops))

        if content and not in_thoughts:
            return tuple(content)
        if content:
            heard = [self.closed, *[_unheard] * (len(content) - 1)]  # a block is closed once, whoever follows
            return tuple(partial(before, make, closed) for make, closed in zip(content, heard, strict=True))
        return () if budget is None and not self.conductor else (alone,)

    def count(self, *, in_thoughts: bool) -> ThoughtCount:
        return ThoughtCount(self.reader, in_thoughts)


def thinking_model(
    template: str,
    tokenizer: Tokenizer,
    *,
    closing: str | None = None,
    budget: int | None = None,
    conductor: bool = False,
    closed: Callable[[str], None] = _unheard,
) -> ThinkingModel:
    """The model behind a `template` that knows thoughts. Raises UsageError for a `closing` text that closes nothing."""
    tags, bytes_of = Tags(), TokenBytes(tokenizer)
    own = QWEN_CLOSING if SWITCH in template and "<|im_start|>" in template else BARE_CLOSING
    usual = own if closing is None else closing
    ids = [tuple(tokenizer.encode(text, add_special_tokens=False).ids) for text in (usual, BARE_CLOSING)]
    if not b"".join(map(bytes_of, ids[0])).rstrip(b"\n").endswith(tags.closing.encode()):
        raise UsageError(f"--think-closing must end with {tags.closing} and line ends at most, for content follows it")
    return ThinkingModel(BlockReader(tags, bytes_of), Closings(*ids), budget, conductor, closed)
