"""What a bundle makes of texts: its loss and choices at every position, and its own greedy answers to prompts.

Knows nothing of limits, nor of what it is compared with. Letters: R rows, V vocabulary.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from tandem.artifacts.io import Geometry
from tandem.keys import Kind
from tandem.runtime.checks.lab import slots_for
from tandem.runtime.executor.base import Executor
from tandem.runtime.rows import Span, extend_rows

Advance = Callable[[int], None]
"""Hears how many rows a pass had."""
GRAM = 4


@dataclass(frozen=True, slots=True)
class Reading:
    """A text read once: `loss` is its mean in nats a token; `choice` [tokens] and `gap` [tokens] are the argmax and
    its lead over the second, in logits, at each position that predicts a token."""

    loss: float
    choice: np.ndarray
    gap: np.ndarray


def read(executor: Executor, windows: Sequence[Sequence[int]], advance: Advance = lambda rows: None) -> Reading:
    """Reads a text in lane 0. Each window of it begins at position 0, and its last token is only predicted."""
    g = executor.geometry
    step = min(g.max_rows, g.max_outputs)  # the logits of every row are wanted
    table = np.arange(min(executor.num_pages, g.blocks_per_lane), dtype=np.int32)[None, :]
    scratch = np.empty(g.vocab_size, np.float64)
    losses, choices, gaps = list[float](), list[int](), list[float]()
    for ids in windows:
        for begin in range(0, len(ids) - 1, step):
            tokens = ids[begin : min(begin + step, len(ids) - 1)]
            rows = extend_rows([Span(0, begin, tokens, outputs=1)], table, slots_for(executor, 1))
            rows.output_row = range(len(tokens))
            outcome = executor.run(Kind.EXTEND, rows)
            targets = ids[begin + 1 : begin + 1 + len(tokens)]
            losses += [nats(executor.logits(i), target, scratch) for i, target in enumerate(targets)]
            choices += outcome.argmax
            gaps += outcome.gap
            advance(len(tokens))
    return Reading(math.fsum(losses) / len(losses), np.array(choices), np.array(gaps))


def nats(logits: np.ndarray, target: int, scratch: np.ndarray) -> float:
    """-log softmax(logits)[target] in float64. `logits` is fp32 [V], `scratch` float64 [V]."""
    top = float(logits.max())
    np.subtract(logits, top, out=scratch, dtype=np.float64)
    np.exp(scratch, out=scratch)
    return math.log(scratch.sum()) - (float(logits[target]) - top)


def answer(
    executor: Executor,
    prompts: Sequence[Sequence[int]],
    *,
    max_tokens: int,
    stop_ids: Sequence[int],
    advance: Advance = lambda rows: None,
) -> list[list[int]]:
    """Greedy answers, as many prompts at a time as there are lanes; an answer ends behind a stop id."""
    lanes, found = executor.geometry.max_lanes, list[list[int]]()
    for first in range(0, len(prompts), lanes):
        found += _joint(executor, prompts[first : first + lanes], max_tokens, frozenset(stop_ids), advance)
    return found


def _joint(
    executor: Executor, prompts: Sequence[Sequence[int]], max_tokens: int, stop_ids: frozenset[int], advance: Advance
) -> list[list[int]]:
    """One answer per lane, a token of each in every pass."""
    per_lane = executor.num_pages // len(prompts)
    pages = np.arange(len(prompts) * per_lane, dtype=np.int32).reshape(len(prompts), per_lane)
    table = pages[:, : executor.geometry.blocks_per_lane]
    answers = [[_prefill(executor, lane, prompt, table)] for lane, prompt in enumerate(prompts)]
    while running := [i for i, ids in enumerate(answers) if len(ids) < max_tokens and ids[-1] not in stop_ids]:
        spans = [Span(i, len(prompts[i]) + len(answers[i]) - 1, answers[i][-1:], outputs=1) for i in running]
        outcome = executor.run(Kind.EXTEND, extend_rows(spans, table, slots_for(executor, len(prompts))))
        for i, token in zip(running, outcome.argmax, strict=True):
            answers[i].append(token)
        advance(len(running))
    return answers


def _prefill(executor: Executor, lane: int, prompt: Sequence[int], table: np.ndarray) -> int:
    """Keeps `prompt` in `lane`; the first token of the answer."""
    step, slots = executor.geometry.max_rows, slots_for(executor, len(table))
    for begin in range(0, len(prompt), step):
        rows = extend_rows([Span(lane, begin, prompt[begin : begin + step], outputs=1)], table, slots)
        outcome = executor.run(Kind.EXTEND, rows)
    return outcome.argmax[0]


def unique_share(answers: Sequence[Sequence[int]]) -> float:
    """How many of the runs of four tokens are new within their answer, over all answers; 1 where there are none."""
    grams = [[tuple(ids[i : i + GRAM]) for i in range(len(ids) - GRAM + 1)] for ids in answers]
    total = sum(map(len, grams))
    return sum(len(set(found)) for found in grams) / total if total else 1.0


def pages_wanted(g: Geometry, windows: Sequence[Sequence[int]], prompts: Sequence[Sequence[int]], answer: int) -> int:
    """Pages for the longest window in one lane, and for a joint answer of `answer` tokens in all lanes."""
    longest = max(map(len, windows)) - 1
    per_lane = -(-(max(map(len, prompts)) + answer) // g.page_tokens)
    return max(-(-longest // g.page_tokens), min(len(prompts), g.max_lanes) * per_lane)
