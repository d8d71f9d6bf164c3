"""Penalties as their definition reads, one id after the other: what tests hold `runtime.penalties` against."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np
from hypothesis import strategies as st

from tandem.runtime.request import Penalties


def penalized(
    logits: np.ndarray, wishes: Penalties, prompt: Sequence[int], answer: Sequence[int], stop_ids: Collection[int]
) -> np.ndarray:
    """Logits fp32 [V] of the token behind prompt and answer."""
    f, text, bias = np.float32, [*prompt, *answer], dict(wishes.logit_bias)
    changed = []
    for token, logit in enumerate(logits.astype(f)):
        value = f(logit + f(bias[token])) if token in bias else logit
        if token in text:
            value = f(value / f(wishes.repetition)) if value > 0 else f(value * f(wishes.repetition))
            value = f(value - f(f(wishes.frequency) * f(list(answer).count(token))))
            value = f(value - f(f(wishes.presence) * f(token in answer)))
        changed.append(value)
    n = wishes.no_repeat_ngram_size
    grams = {tuple(text[i : i + n]) for i in range(len(text) - n + 1)} if n else set()
    ends = [n > 0 and (*text[len(text) - n + 1 :], token) in grams for token in range(len(changed))]
    allowed = [f(-np.inf) if end else value for value, end in zip(changed, ends, strict=True)]
    found = np.array(allowed if max(allowed) > -np.inf else changed, f)
    if len(answer) < wishes.min_tokens and len(set(stop_ids)) < len(found):
        found[list(stop_ids)] = -np.inf
    return found


def penalties() -> st.SearchStrategy[Penalties]:
    """None at all, or several at once, over ids below 23."""
    some = st.builds(
        Penalties,
        repetition=st.sampled_from([1.0, 1.3, 0.5]),
        presence=st.sampled_from([0.0, 2.0, -1.0]),
        frequency=st.sampled_from([0.0, 0.7]),
        no_repeat_ngram_size=st.integers(0, 3),
        logit_bias=st.sampled_from([(), ((3, 100.0), (4, -2.5))]),
    )
    return st.one_of(st.just(Penalties()), some)
