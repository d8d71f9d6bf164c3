"""The guide of an answer under a grammar: it keeps an llguidance matcher in step with the walk of a round.

Knows nothing of what the grammar says, nor of HTTP.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import TracebackType
from typing import TYPE_CHECKING

import numpy as np

from tandem.errors import RequestError
from tandem.runtime.grammar.mask import Mask
from tandem.tree import DraftTree

if TYPE_CHECKING:
    from llguidance import LLMatcher

SOURCE = "grammar"
"""What trees and metrics call tokens that a grammar leaves no choice about."""

MAX_FORCED_BYTES = 4096
"""Most bytes that may follow each other without a choice: they are worked out anew at every token."""


class GrammarGuide:
    """The `Guide` of one answer. `grammar` is a matcher at its beginning, of which it takes copies; errors name the
    field `param`.

    Legal are the ids of the matcher's mask, the end tokens among them exactly where the grammar is complete. Where the
    next bytes are certain that is one id: the tokenizer's own for them.
    """

    def __init__(self, grammar: LLMatcher, vocab_size: int, param: str | None = None) -> None:
        self._grammar, self._matcher, self._mask = grammar, grammar.deep_copy(), Mask(vocab_size)
        self._text: list[int] = []  # the answer, committed
        self._said: list[int] = []  # what the matcher has taken behind it
        self._current = False  # whether the mask is that of the matcher's place
        self._cuts = True
        self._guarded = _Guard(param)

    def extend(self, tokens: Sequence[int]) -> None:
        with self._guarded:
            self._surely(self._walk, tokens)
        self._text += tokens
        self._said = []

    def changes(self, said: Sequence[int]) -> bool:
        return True

    def keeps(self, token: int, said: Sequence[int]) -> bool:
        with self._guarded:
            self._surely(self._look, said)
            return self._mask.allows(token)

    def applied(self, logits: np.ndarray, said: Sequence[int]) -> np.ndarray:
        with self._guarded:
            self._surely(self._look, said)
            changed = self._mask.applied(logits)
            if changed is None:
                raise ValueError("no token of the vocabulary goes on from here")
            return changed

    def cut(self, tree: DraftTree) -> DraftTree:
        """Also adds what the grammar forces: a path of certain tokens, so of probability 1."""
        if not self._cuts:
            return tree
        with self._guarded:
            try:
                self._surely(self._walk, ())
                forced = self._matcher.compute_ff_tokens()
                kept = self._legal(tree, forced)
            except ValueError:  # a draft leads to the limits; the text may never come there
                self._cuts = False
                self._anew()
                return tree
        if not forced:
            return kept
        line = DraftTree.chain(tree.tokens[0], forced, [1.0] * len(forced), SOURCE)
        return line.merged(kept) if kept.num_drafted else line

    def _surely(self, step: Callable[[Sequence[int]], None], said: Sequence[int]) -> None:
        """`step`, once more from a new matcher where it fails: drafts may have brought this one close to its limits."""
        try:
            step(said)
        except ValueError:
            self._anew()
            step(said)

    def _anew(self) -> None:
        self._matcher, self._said, self._current = self._grammar.deep_copy(), [], False
        if self._text and not self._matcher.consume_tokens(self._text):
            raise ValueError(self._matcher.get_error())

    def _walk(self, said: Sequence[int]) -> None:
        """Brings the matcher behind the committed text and `said`."""
        taken, common = self._said, 0
        while common < len(taken) and common < len(said) and taken[common] == said[common]:
            common += 1
        if common < len(taken):
            self._back(len(taken) - common)
            self._current = False
        for token in said[common:]:
            self._current = False
            if not self._matcher.consume_token(token):
                raise ValueError(self._matcher.get_error())
        self._said = list(said)

    def _look(self, said: Sequence[int]) -> None:
        """Brings the mask behind the committed text and `said`."""
        self._walk(said)
        if self._current:
            return
        matcher, words = self._matcher, self._mask.words
        matcher.unsafe_compute_mask_ptr(words.ctypes.data, words.nbytes)
        self._check()
        if (forced := len(matcher.compute_ff_bytes())) > MAX_FORCED_BYTES:
            raise ValueError(f"{forced} bytes follow without a choice; at most {MAX_FORCED_BYTES} may")
        self._current = True

    def _check(self) -> None:
        if self._matcher.is_error():
            raise ValueError(self._matcher.get_error())

    def _legal(self, tree: DraftTree, forced: Sequence[int]) -> DraftTree:
        """`tree` without the nodes that the grammar forbids, or that stand beside a forced one."""
        depths, matcher, path, kept = tree.depths(), self._matcher, [0], [0]
        for node in range(1, len(tree)):
            parent, token, depth = tree.parents[node], tree.tokens[node], depths[node]
            if parent not in path or (depth <= len(forced) and token != forced[depth - 1]):
                continue
            place = path.index(parent) + 1
            self._back(len(path) - place)
            del path[place:]
            if matcher.try_consume_tokens([token]):
                path.append(node)
                kept.append(node)
        self._check()
        self._back(len(path) - 1)
        return tree if len(kept) == len(tree) else tree.subset(kept)

    def _back(self, count: int) -> None:
        if count and not self._matcher.rollback(count):
            raise ValueError(self._matcher.get_error())


class _Guard:
    """Turns whatever goes wrong inside a matcher, panics of its library too, into the error of the request."""

    def __init__(self, param: str | None) -> None:
        self._param = param

    def __enter__(self) -> None:
        pass

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if error is None or isinstance(error, (KeyboardInterrupt, SystemExit)):
            return
        reason = first_line(str(error))
        raise RequestError(f"the grammar cannot go on: {reason}", param=self._param, code="grammar_failed") from error


def first_line(message: str) -> str:
    """What a message of llguidance says before it shows its state."""
    return message.strip().partition("\n")[0][:300]
