"""What a client wishes changed of the logits before a token is chosen, given the text so far.

A function of (logits, wishes, text) and of nothing else: which tokens were guessed, or verified in which pass, does not
show. Knows nothing of passes, lanes or noise.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence

import numpy as np

from tandem.errors import RequestError
from tandem.runtime.request import Penalties
from tandem.tree import DraftTree

_BLOCKED = np.float32(-np.inf)


class PenalizedText:
    """The `Guide` of a text under `penalties`; `stop_ids` are what `min_tokens` holds back.

    `repetition` looks at prompt and answer, `presence` and `frequency` at the answer alone, as vLLM has them.
    """

    def __init__(self, penalties: Penalties, prompt: Sequence[int], stop_ids: Collection[int]) -> None:
        self._penalties = penalties
        self._ids = list(prompt)
        self._prompt_tokens = len(prompt)
        self._stop_ids = np.array(sorted(stop_ids), np.int64)
        self._bias_ids = np.array([token for token, _ in penalties.logit_bias], np.int64)
        self._bias = np.array([bias for _, bias in penalties.logit_bias], np.float32)
        self._followers: dict[tuple[int, ...], list[int]] = {}
        known = np.unique(np.array(prompt, np.int64)) if penalties.counted else np.empty(0, np.int64)
        self._place = {int(token): place for place, token in enumerate(known)}
        self._seen, self._counts = known, np.zeros(len(known), np.float32)  # counts are of the answer alone
        self._num_known = len(known)  # the first of `_seen`: those of the prompt
        self._uncounted: list[int] = []  # of the answer; nobody looks at counts where a device has its own
        self._learn(penalties.no_repeat_ngram_size)

    def extend(self, tokens: Sequence[int]) -> None:
        """More of the answer."""
        begin = len(self._ids) + 1
        self._ids += tokens
        if self._penalties.counted:
            self._uncounted += tokens
        self._learn(max(begin, self._penalties.no_repeat_ngram_size))

    @property
    def counted(self) -> Penalties | None:
        """The penalties, where all that they look at is how often the text has an id: a device may take them off."""
        p = self._penalties
        others = p.no_repeat_ngram_size or p.logit_bias or p.min_tokens
        return p if p.counted and not others else None

    def seen(self, vocab_size: int) -> np.ndarray:
        """int32 [V]: twice how often the answer has an id, and 1 more if the prompt has it."""
        self._count()
        counts = np.zeros(vocab_size, np.int32)
        counts[self._seen] = 2 * self._counts.astype(np.int32)
        counts[self._seen[: self._num_known]] += 1
        return counts

    def changes(self, said: Sequence[int]) -> bool:
        return True

    def keeps(self, token: int, said: Sequence[int]) -> bool:
        return False

    def cut(self, tree: DraftTree) -> DraftTree:
        return tree

    def applied(self, logits: np.ndarray, said: Sequence[int] = ()) -> np.ndarray:
        """New logits fp32 [V] of the token behind the text and `said`, which are tokens of a draft.

        In this order: bias; repetition (a positive logit is divided, another multiplied); frequency times the count,
        and presence, taken off; ids that would repeat an n-gram, unless that leaves none; stop ids below `min_tokens`.
        """
        changed, p = logits.astype(np.float32), self._penalties
        if len(self._bias_ids):
            changed[self._bias_ids] += self._bias
        if p.counted:
            self._take_off(changed, said)
        if p.no_repeat_ngram_size:
            repeating = self._repeating(said)
            before = changed[repeating]
            changed[repeating] = _BLOCKED
            if changed.max() == _BLOCKED:
                changed[repeating] = before
        if len(self._ids) + len(said) - self._prompt_tokens < p.min_tokens:
            held = self._stop_ids[: np.searchsorted(self._stop_ids, len(changed))]  # others never come
            if len(held) < len(changed):
                changed[held] = _BLOCKED
        return changed

    def _take_off(self, logits: np.ndarray, said: Sequence[int]) -> None:
        self._count()
        seen, counts, _ = self._with(said) if said else (self._seen, self._counts, None)
        p, values = self._penalties, logits[seen]
        if p.repetition != 1:
            repetition = np.float32(p.repetition)
            values = np.where(values > 0, values / repetition, values * repetition)
        if p.frequency != 0:
            values -= np.float32(p.frequency) * counts
        if p.presence != 0:
            values -= np.float32(p.presence) * (counts > 0)
        logits[seen] = values

    def _count(self) -> None:
        if self._uncounted:
            self._seen, self._counts, new = self._with(self._uncounted)
            self._place |= new
            self._uncounted = []

    def _with(self, tokens: Sequence[int]) -> tuple[np.ndarray, np.ndarray, dict[int, int]]:
        """Ids of the text and `tokens`, how often the answer has each, and where those stand that are new."""
        unknown = [token for token in dict.fromkeys(tokens) if token not in self._place]
        new = {token: len(self._place) + i for i, token in enumerate(unknown)}
        seen = np.concatenate((self._seen, np.array(unknown, np.int64)))
        counts = np.concatenate((self._counts, np.zeros(len(unknown), np.float32)))
        for token in tokens:
            counts[new[token] if token in new else self._place[token]] += 1
        return seen, counts, new

    def _repeating(self, said: Sequence[int]) -> np.ndarray:
        """Ids that would end an n-gram which the text and `said` hold already."""
        n = self._penalties.no_repeat_ngram_size
        tail = [*self._ids[max(0, len(self._ids) - n + 1) :], *said]
        key = tuple(tail[len(tail) - n + 1 :])
        if len(tail) < n - 1:
            return np.empty(0, np.int64)
        drafted = [tail[end - 1] for end in range(n, len(tail) + 1) if tuple(tail[end - n : end - 1]) == key]
        return np.array([*self._followers.get(key, ()), *drafted], np.int64)

    def _learn(self, begin: int) -> None:
        """Takes in the n-grams that end at `begin` or behind, counted from 1."""
        n = self._penalties.no_repeat_ngram_size
        for end in range(begin, len(self._ids) + 1) if n else ():
            self._followers.setdefault(tuple(self._ids[end - n : end - 1]), []).append(self._ids[end - 1])


def validate(penalties: Penalties, vocab_size: int, max_tokens: int) -> None:
    """Raises RequestError naming the first field that is out of range."""
    p = penalties
    checks: list[tuple[str, object, bool, str]] = [
        ("repetition_penalty", p.repetition, 0 < p.repetition < math.inf, "a finite number above 0"),
        ("presence_penalty", p.presence, -2 <= p.presence <= 2, "between -2 and 2"),
        ("frequency_penalty", p.frequency, -2 <= p.frequency <= 2, "between -2 and 2"),
        ("no_repeat_ngram_size", p.no_repeat_ngram_size, p.no_repeat_ngram_size >= 0, "a length, or 0 for off"),
        ("min_tokens", p.min_tokens, 0 <= p.min_tokens <= max_tokens, f"0 to max_tokens, which is {max_tokens}"),
    ]
    for token, bias in p.logit_bias:
        known = 0 <= token < vocab_size
        checks.append(
            ("logit_bias", f"of token {token}", known, f"of tokens below {vocab_size}, the vocabulary's size")
        )
        checks.append(("logit_bias", f"{bias} for token {token}", -100 <= bias <= 100, "between -100 and 100"))
    for param, value, sound, wanted in checks:
        if not sound:
            raise RequestError(f"{param} is {value}; it must be {wanted}", param=param, code="invalid_value")
