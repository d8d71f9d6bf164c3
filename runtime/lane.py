"""A lane: one sequence being served, its text so far, its noise, its drafters and its counts.

Knows nothing of passes, pages or other lanes.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Callable, Sequence
from typing import cast

import numpy as np

from tandem.errors import RequestError, TandemError
from tandem.runtime.drafters.base import Drafter
from tandem.runtime.guide import Guide
from tandem.runtime.logprobs import TokenLogprob
from tandem.runtime.penalties import PenalizedText
from tandem.runtime.request import FinishReason, LaneStats, MeasuringSink, Request, Ticket
from tandem.tree import DraftTree

log = logging.getLogger("tandem.runtime")

DROPPED = "a drafter failed; its lane goes on without"


class Lane:
    """The sequence in row `index` of the block table, at most `max_length` ids long.

    `ids` is the prompt and the committed tokens; KV of the first `kv_length` is in. While decoding, kv_length is
    len(ids) - 1: the last id is the anchor, which the next pass writes. No stretch of the prompt that comes in crosses
    position `halt`. `finish` is set when the lane has ended, and `error` where a guide could not go on. The `drafter`
    costs a round nothing, the `model` has to be asked.
    """

    def __init__(
        self,
        index: int,
        ticket: Ticket,
        max_length: int,
        drafter: Callable[[], Drafter] | None,
        model: Callable[[], Drafter | None] | None = None,
    ) -> None:
        request = ticket.request
        self.index, self.ticket, self.max_length = index, ticket, max_length
        self.ids = list(request.prompt)
        self.kv_length = self.halt = 0
        self.stats = LaneStats(prompt_tokens=len(request.prompt))
        self.finish: FinishReason | None = None
        self.error: TandemError | None = None
        self._num_sound = 0  # tokens of the last round that were drawn before a guide could not go on
        self.sampling, self.stop_ids = request.sampling, request.stop_ids
        seed = request.sampling.seed
        self.seed = secrets.randbits(64) if seed is None else seed
        self.guides: list[Guide] = []
        self.penalized: PenalizedText | None = None  # the first of the guides, where there are penalties
        self._guide_by(request)
        self.logprobs: list[TokenLogprob] = []  # of the round at hand, if they are asked for
        self.drafter: Drafter | None = self._begun(drafter) if drafter and request.speculate else None
        self.model: Drafter | None = self._begun(model) if model and request.speculate else None
        self.rest = 0  # rounds to come in which the drafter rests
        self._rests = False  # since the last look at what it proposes
        self._behind = 0  # tokens that it was not told

    @property
    def decoding(self) -> bool:
        """Whether the first token is out, so that each round adds some."""
        return len(self.ids) > self.stats.prompt_tokens

    @property
    def drafts(self) -> bool:
        return self.drafter is not None or self.model is not None

    @property
    def measures_prompt(self) -> bool:
        """Whether the logprobs of the prompt's tokens are asked for."""
        return self.ticket.request.prompt_logprobs is not None

    @property
    def stretch(self) -> int:
        """Tokens of the prompt that may come in with the next pass."""
        return (self.halt if self.kv_length < self.halt else len(self.ids)) - self.kv_length

    @property
    def num_left(self) -> int:
        """Tokens that the lane may still commit."""
        return self.max_length - len(self.ids)

    def _guide_by(self, request: Request) -> None:
        """Makes the guides, the penalties first; where one cannot be made the lane ends with its first pass."""
        try:
            if not request.penalties.neutral:
                self.penalized = PenalizedText(request.penalties, request.prompt, request.stop_ids)
                self.guides.append(self.penalized)
            self.guides += [make(request.prompt, request.stop_ids) for make in request.guides]
        except Exception as error:
            self._refuse(error, 0)

    def _begun(self, make: Callable[[], Drafter | None]) -> Drafter | None:
        try:
            if drafter := make():
                drafter.begin(self.ticket.request.prompt)
            return drafter
        except Exception:
            log.exception(DROPPED)
            return None

    def propose(self, max_nodes: int, vocab_size: int, *, by_model: bool = False, look: bool = True) -> list[DraftTree]:
        """A drafter's candidates with drafted nodes, cut to depths that could still be committed.

        Unless it is to `look`, no drafter is asked, and there is only what guides know.
        """
        if not by_model:
            self._rests = not look
        if not self.drafts or self.num_left < 2 or max_nodes < 1 or not (look or self.guides):
            return []
        drafter = None if not look else self.model if by_model else self.drafter
        try:
            if self._behind and look and not by_model:
                self._catch_up()
            trees = [tree for tree in drafter.propose(max_nodes) if tree.num_drafted] if drafter else []
            if not trees and self.guides and not by_model:
                trees = [DraftTree.root(self.ids[-1])]  # guides may know what comes
            fitted = [self._fitted(tree, max_nodes, vocab_size) for tree in trees]
            return [tree for tree in fitted if tree.num_drafted] if self.guides else fitted
        except RequestError as error:
            self._refuse(error, 0)
            return []
        except Exception:
            self._drop(drafter)
            return []

    def _fitted(self, tree: DraftTree, max_nodes: int, vocab_size: int) -> DraftTree:
        tokens = tree.tokens
        if tokens[0] != self.ids[-1] or min(tokens) < 0 or max(tokens) >= vocab_size:
            raise ValueError(f"a draft over token {tokens[0]} does not fit the anchor or the vocabulary")
        if not tree.is_tree:
            raise ValueError(f"a draft of tokens {tokens} below nodes {tree.parents} is no tree")
        for guide in self.guides:
            tree = guide.cut(tree)
        # The path to depth d commits d + 1 tokens: deeper nodes have no room.
        if self.num_left < len(tree):
            tree = tree.subset([i for i, depth in enumerate(tree.depths()) if depth < self.num_left])
        return tree if tree.num_drafted <= max_nodes else tree.truncate(max_nodes + 1)

    def guided(self, logits: Callable[[], np.ndarray], said: Sequence[int], largest: int | None) -> np.ndarray | None:
        """`logits` of the token behind the text and `said` as the guides want them; None if they leave them alone.

        Where only the `largest` matters, and each of them keeps it, that is as good as left alone.
        """
        changed = None
        try:
            guides = [guide for guide in self.guides if guide.changes(said)]
            if largest is None or not all(guide.keeps(largest, said) for guide in guides):
                for guide in guides:
                    changed = guide.applied(logits() if changed is None else changed, said)
            return changed
        except Exception as error:
            self._refuse(error, len(said))
            return None

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
        try:
            for guide in self.guides:
                guide.extend(tokens)
        except Exception as error:
            self._refuse(error, len(tokens))
        self.stats.completion_tokens += len(tokens)
        if self.error is not None:
            self.finish = FinishReason.ERROR
        elif tokens[-1] in self.stop_ids:
            self.finish = FinishReason.STOP
        elif self.num_left == 0:
            self.finish = FinishReason.LENGTH

    def inform(self, rows: Sequence[int], tokens: list[int]) -> None:
        """Tell the drafters which rows of the pass at hand are in the text now, if any, and what was committed."""
        late = self._rests or self._behind
        if late:
            self._behind += len(tokens)
        for drafter in (None if late else self.drafter, self.model):
            if drafter is None:
                continue
            try:
                if rows:
                    drafter.sync(rows)
                if tokens:
                    drafter.observe(tokens)
            except Exception:
                self._drop(drafter)

    def _catch_up(self) -> None:
        """Tells the drafter what came while it rested."""
        if self.drafter is not None:
            self.drafter.observe(self.ids[-self._behind :])
        self._behind = 0

    def end(self) -> None:
        """Tell the drafters that the text is over."""
        for drafter in (self.drafter, self.model):
            if drafter is None:
                continue
            try:
                if drafter is self.drafter and self._behind:
                    self._catch_up()
                drafter.end()
            except Exception:
                self._drop(drafter)

    def deliver(self, tokens: list[int]) -> None:
        """Hand committed tokens to the sink; a sink that fails cancels the lane."""
        if self.ticket.cancelled:
            self.finish = FinishReason.CANCELLED
            return
        measured, self.logprobs = self.logprobs, []
        if self.error is not None:
            tokens, measured = tokens[: self._num_sound], measured[: self._num_sound]
            if not tokens:
                return
        try:
            if measured:
                cast(MeasuringSink, self.ticket.sink).measured(measured)
            if self.ticket.sink.tokens(tokens):
                self.finish, self.error = FinishReason.STOP, None
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

    def _refuse(self, error: Exception, num_sound: int) -> None:
        """A guide's failure ends the lane when the round at hand is over, behind `num_sound` of its tokens.

        Until then the model has its way. A guide that is wrong itself ends its own request, not all of them.
        """
        if not isinstance(error, TandemError):
            log.error("a guide failed; its request ends", exc_info=error)
            error = TandemError(f"what the request asks of its tokens failed ({error}); the server's log says more")
        self.error, self.guides, self._num_sound = error, [], num_sound

    def _drop(self, drafter: Drafter | None) -> None:
        """A drafter's failure costs the lane that drafter: guesses may speed a text up, never end it."""
        log.exception(DROPPED)
        if drafter is self.drafter:
            self.drafter = None
        else:
            self.model = None
