"""A lane: one sequence being served, its text so far, its noise, its drafter and its counts.

Knows nothing of passes, pages or other lanes.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Callable, Sequence

from tandem.runtime.drafters.base import Drafter
from tandem.runtime.request import FinishReason, LaneStats, Ticket
from tandem.tree import DraftTree

log = logging.getLogger("tandem.runtime")


class Lane:
    """The sequence in row `index` of the block table, at most `max_length` ids long.

    `ids` is the prompt and the committed tokens; KV of the first `kv_length` is in. While decoding, kv_length is
    len(ids) - 1: the last id is the anchor, which the next pass writes. `finish` is set when the lane has ended.
    """

    def __init__(self, index: int, ticket: Ticket, max_length: int, drafter: Callable[[], Drafter] | None) -> None:
        request = ticket.request
        self.index, self.ticket, self.max_length = index, ticket, max_length
        self.ids = list(request.prompt)
        self.kv_length = 0
        self.stats = LaneStats(prompt_tokens=len(request.prompt))
        self.finish: FinishReason | None = None
        seed = request.sampling.seed
        self.seed = secrets.randbits(64) if seed is None else seed
        self.drafter: Drafter | None = None
        if drafter is not None and request.speculate:
            self._guarded(lambda: self._begin(drafter()))

    @property
    def decoding(self) -> bool:
        """Whether the first token is out, so that each round adds some."""
        return len(self.ids) > self.stats.prompt_tokens

    @property
    def num_left(self) -> int:
        """Tokens that the lane may still commit."""
        return self.max_length - len(self.ids)

    def _begin(self, drafter: Drafter) -> None:
        drafter.begin(self.ticket.request.prompt)
        self.drafter = drafter

    def propose(self, max_nodes: int, vocab_size: int) -> list[DraftTree]:
        """The drafter's candidates with drafted nodes, cut to depths that could still be committed."""
        if self.drafter is None or self.num_left < 2 or max_nodes < 1:
            return []
        trees: list[DraftTree] = []
        self._guarded(lambda: trees.extend(self._drafts(max_nodes, vocab_size)))
        return trees if self.drafter is not None else []

    def _drafts(self, max_nodes: int, vocab_size: int) -> list[DraftTree]:
        trees = []
        for tree in self.drafter.propose(max_nodes) if self.drafter is not None else ():
            if tree.tokens[0] != self.ids[-1] or not all(0 <= token < vocab_size for token in tree.tokens):
                raise ValueError(f"a draft over token {tree.tokens[0]} does not fit the anchor or the vocabulary")
            # The path to depth d commits d + 1 tokens: deeper nodes have no room.
            tree = tree.subset([i for i, depth in enumerate(tree.depths()) if depth < self.num_left])
            trees.append(tree.truncate(max_nodes + 1))
        return [tree for tree in trees if tree.num_drafted]

    def commit(self, tokens: list[int], kv_rows: int) -> None:
        """Append committed tokens, of which `kv_rows` rows of KV came in, and set `finish` if the text ends here."""
        self.ids.extend(tokens)
        self.kv_length += kv_rows
        self.stats.completion_tokens += len(tokens)
        if tokens[-1] in self.ticket.request.stop_ids:
            self.finish = FinishReason.STOP
        elif self.num_left == 0:
            self.finish = FinishReason.LENGTH

    def inform(self, rows: Sequence[int], tokens: list[int]) -> None:
        """Tell the drafter which rows of the pass a verify accepted, if it was one, and what was committed."""
        drafter = self.drafter
        if drafter is None:
            return
        if rows:
            self._guarded(lambda: drafter.sync(rows))
        self._guarded(lambda: drafter.observe(tokens))

    def deliver(self, tokens: list[int]) -> None:
        """Hand committed tokens to the sink; a sink that fails cancels the lane."""
        if self.ticket.cancelled:
            self.finish = FinishReason.CANCELLED
            return
        try:
            if self.ticket.sink.tokens(tokens):
                self.finish = FinishReason.STOP
        except Exception:
            log.exception("a sink failed; its request is cancelled")
            self.finish = FinishReason.CANCELLED

    def _guarded(self, call: Callable[[], object]) -> None:
        """A drafter's failure costs the lane its drafter: guesses may speed a text up, never end it."""
        try:
            call()
        except Exception:
            log.exception("a drafter failed; its lane decodes plainly")
            self.drafter = None
