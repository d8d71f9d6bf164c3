"""How likely each token is under a request's sampling and penalties: the textbook's softmax, in float64.

Written apart from `runtime.sampling` and `runtime.penalties`, which are held against it. Knows nothing of draws.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tandem.runtime.request import Penalties, Sampling

SLACK = 1e-5
"""What stands as close as this to the edge of a filter counts as inside: weights are rounded, and these are not."""


def distribution(
    logits: np.ndarray, sampling: Sampling, penalties: Penalties, prompt: Sequence[int], answer: Sequence[int]
) -> np.ndarray:
    """Probabilities float64 [V] of the token behind `prompt` and `answer`, from the model's logits fp32 [V]."""
    values = _penalized(logits, penalties, prompt, answer).astype(np.float64)
    weights = np.exp((values - values.max()) / sampling.temperature)
    order = np.argsort(-values, kind="stable")
    if 0 < sampling.top_k < len(values):
        weights[order[sampling.top_k :]] = 0.0
    if sampling.top_p < 1.0:
        mass = np.cumsum(weights[order]) / weights.sum()
        before = np.concatenate(([0.0], mass[:-1]))
        weights[order[before >= sampling.top_p + SLACK]] = 0.0
    weights[weights < sampling.min_p * (1 - SLACK)] = 0.0
    return weights / weights.sum()


def _penalized(logits: np.ndarray, wanted: Penalties, prompt: Sequence[int], answer: Sequence[int]) -> np.ndarray:
    """New logits, fp32 as the definition has it, so that equals stay equal."""
    values, text = logits.astype(np.float32), [*prompt, *answer]
    for token, bias in wanted.logit_bias:
        values[token] += np.float32(bias)
    for token in set(text):
        count = answer.count(token)
        value = values[token]
        value = value / np.float32(wanted.repetition) if value > 0 else value * np.float32(wanted.repetition)
        value = value - np.float32(wanted.frequency) * np.float32(count)
        values[token] = value - np.float32(wanted.presence) * np.float32(count > 0)
    if n := wanted.no_repeat_ngram_size:
        last = text[len(text) - n + 1 :]
        for start in range(len(text) - n + 1):
            if text[start : start + n - 1] == last:
                values[text[start + n - 1]] = -np.inf
    return values


def by_rank(shares: np.ndarray, token: int, chance: float) -> float:
    """Where `token` stands when all are laid side by side, the likeliest first, 0 to 1: `chance` says where within it.

    With `chance` uniform it is uniform as well if `token` was drawn by `shares` (the probability integral transform).
    """
    own = shares[token]
    before = shares[shares > own].sum() + shares[:token][shares[:token] == own].sum()
    return float(before + chance * own)


def by_id(shares: np.ndarray, token: int, chance: float) -> float:
    """The same with the lowest id first, as a draw lays them, so that the noise itself shows."""
    return float(shares[:token].sum() + chance * shares[token])
