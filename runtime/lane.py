"""A lane: one sequence being served, its text so far, its noise, its drafter and its counts.

Knows nothing of passes, pages or other lanes.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Callable, Sequence
from typing import cast

import numpy as np

from tandem.runtime.drafters.base import Drafter
from tandem.runtime.guide import ForcingGuide
from tandem.runtime.logprobs import TokenLogprob
from tandem.runtime.penalties import PenalizedText
from tandem.runtime.request import FinishReason, LaneStats, MeasuringSink, Ticket
from tandem.tree import DraftTree

log = logging.getLogger("tandem.runtime")

FORCED = "forced"
"""The source of drafts that guides leave no choice about."""


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
        self.sampling, self.stop_ids = request.sampling, request.stop_ids
        seed = request.sampling.seed
        self.seed = secrets.randbits(64) if seed is None else seed
        self.guides = [make(request.prompt, request.stop_ids) for make in request.guides]
        if not request.penalties.neutral:
            self.guides.insert(0, PenalizedText(request.penalties, request.prompt, request.stop_ids))
        self._forcing = [guide for guide in reversed(self.guides) if isinstance(guide, ForcingGuide)]
        self.logprobs: list[TokenLogprob] = []  # of the round at hand, if they are asked for
        self.drafter: Drafter | None = None
        if drafter is not None and request.speculate:
            self._begin(drafter)

    @property
    def decoding(self) -> bool:
        """Whether the first token is out, so that each round adds some."""
        return len(self.ids) > self.stats.prompt_tokens

    @property
    def measures_prompt(self) -> bool:
        """Whether the logprobs of the prompt's tokens are asked for."""
        return self.ticket.request.prompt_logprobs is not None

    @property
    def num_left(self) -> int:
        """Tokens that the lane may still commit."""
        return self.max_length - len(self.ids)

    def _begin(self, make: Callable[[], Drafter]) -> None:
        try:
            drafter = make()
            drafter.begin(self.ticket.request.prompt)
            self.drafter = drafter
        except Exception:
            self._drop_drafter()

    def propose(self, max_nodes: int, vocab_size: int) -> list[DraftTree]:
        """Candidates with drafted nodes, cut to depths that could still be committed: the drafter's, or what is forced.

        A lane without a drafter has none of either: it decodes one token a round.
        """
        if self.drafter is None or self.num_left < 2 or max_nodes < 1:
            return []
        try:
            trees = self._forced(max_nodes) or self.drafter.propose(max_nodes)
            fitted = [self._fitted(tree, max_nodes, vocab_size) for tree in trees if tree.num_drafted] if trees else []
            return [tree for tree in fitted if tree.num_drafted] if self.guides else fitted
        except Exception:
            self._drop_drafter()
            return []

    def _forced(self, max_nodes: int) -> list[DraftTree]:
        """What a guide leaves no choice about, as the one candidate; the last guide has the last word."""
        tokens = next((forced for guide in self._forcing if (forced := guide.forced())), ())[:max_nodes]
        return [DraftTree.chain(self.ids[-1], tokens, [1.0] * len(tokens), FORCED)] if tokens else []

    def _fitted(self, tree: DraftTree, max_nodes: int, vocab_size: int) -> DraftTree:
        tokens = tree.tokens
        if tokens[0] != self.ids[-1] or min(tokens) < 0 or max(tokens) >= vocab_size:
            raise ValueError(f"a draft over token {tokens[0]} does not fit the anchor or the vocabulary")
        if not tree.is_tree:
            raise ValueError(f"a draft of tokens {tokens} below nodes {tree.parents} is no tree")
        # The path to depth d commits d + 1 tokens: deeper nodes have no room.
        if self.num_left < len(tree):
            tree = tree.subset([i for i, depth in enumerate(tree.depths()) if depth < self.num_left])
        for guide in self.guides:
            tree = guide.cut(tree)
        return tree if tree.num_drafted <= max_nodes else tree.truncate(max_nodes + 1)

    def guided(self, logits: Callable[[], np.ndarray], said: Sequence[int]) -> np.ndarray | None:
        """`logits` of the token behind the text and `said` as the guides want them; None if they leave them alone."""
        changed = None
        for guide in self.guides:
            if guide.changes(said):
                changed = guide.applied(logits() if changed is None else changed, said)
        return changed

    def commit(self, tokens: list[int], kv_rows: int, drafted: int = 0) -> None:
        """A round's committed tokens, of which `kv_rows` rows of KV came in; sets `finish` if the text ends here."""
        self.stats.rounds += 1
        self.stats.drafted += drafted
        self.stats.accepted += kv_rows - 1
        self.kv_length += kv_rows
        self.append(tokens)

    def append(self, tokens: list[int]) -> None:
        """More of the text, whose KV is not in; sets `finish` if it ends here."""
        self.ids += tokens
        for guide in self.guides:
            guide.extend(tokens)
        self.stats.completion_tokens += len(tokens)
        if tokens[-1] in self.stop_ids:
            self.finish = FinishReason.STOP
        elif self.num_left == 0:
            self.finish = FinishReason.LENGTH

    def inform(self, rows: Sequence[int], tokens: list[int]) -> None:
        """Tell the drafter which rows of the pass a verify accepted, if it was one, and what was committed."""
        if self.drafter is None:
            return
        try:
            if rows:
                self.drafter.sync(rows)
            self.drafter.observe(tokens)
        except Exception:
            self._drop_drafter()

    def deliver(self, tokens: list[int]) -> None:
        """Hand committed tokens to the sink; a sink that fails cancels the lane."""
        if self.ticket.cancelled:
            self.finish = FinishReason.CANCELLED
            return
        measured, self.logprobs = self.logprobs, []
        try:
            if measured:
                cast(MeasuringSink, self.ticket.sink).measured(measured)
            if self.ticket.sink.tokens(tokens):
                self.finish = FinishReason.STOP
        except Exception:
            log.exception("a sink failed; its request is cancelled")
            self.finish = FinishReason.CANCELLED

    def deliver_prompt(self, logprobs: Sequence[TokenLogprob]) -> None:
        """Hand those of the prompt's next tokens to the sink; a sink that fails cancels the lane."""
        try:
            cast(MeasuringSink, self.ticket.sink).prompt_measured(logprobs)
        except Exception:
            log.exception("a sink failed; its request is cancelled")
            self.ticket.cancelled, self.finish = True, FinishReason.CANCELLED

    def _drop_drafter(self) -> None:
        """A drafter's failure costs the lane its drafter: guesses may speed a text up, never end it."""
        log.exception("a drafter failed; its lane decodes plainly")
        self.drafter = None
