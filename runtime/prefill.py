"""A prefill pass: the next stretch of several prompts, and the first token of those that end in it.

Knows nothing of drafts or of when a prefill is due.
"""

from __future__ import annotations

from collections.abc import Sequence
from time import perf_counter

import numpy as np

from tandem.keys import Kind
from tandem.runtime.executor.base import Executor
from tandem.runtime.lane import Lane
from tandem.runtime.round import pick
from tandem.runtime.rows import Span, extend_rows


def prefill(lanes: Sequence[Lane], executor: Executor, table: np.ndarray, slots: Sequence[int], chunk: int) -> None:
    """One pass over `lanes` whose prompts are not all in, first come first, at most `chunk` rows of each."""
    began = perf_counter()
    spans = _spans(lanes, executor, chunk)
    outcome = executor.run(Kind.EXTEND, extend_rows(spans, table, slots))
    served = lanes[: len(spans)]
    first: list[tuple[Lane, list[int]]] = []
    for lane, span in zip(served, spans, strict=True):
        lane.kv_length += len(span.tokens)
        if span.output:
            first.append((lane, [pick(lane, executor, outcome, len(first))]))
    elapsed = (perf_counter() - began) * 1e3
    for lane in served:
        lane.stats.prefill_ms += elapsed
    for lane, tokens in first:
        lane.append(tokens)
        lane.inform([], tokens)
        lane.deliver(tokens)


def _spans(lanes: Sequence[Lane], executor: Executor, chunk: int) -> list[Span]:
    """One span per lane, as far as the rows and outputs of a pass go."""
    num_rows, num_outputs = executor.geometry.max_rows, executor.geometry.max_outputs
    spans: list[Span] = []
    for lane in lanes:
        tokens = lane.ids[lane.kv_length : lane.kv_length + min(chunk, num_rows)]
        ends = lane.kv_length + len(tokens) == len(lane.ids)
        if not tokens or (ends and not num_outputs):
            break
        spans.append(Span(lane.index, lane.kv_length, tokens, ends))
        num_rows -= len(tokens)
        num_outputs -= ends
    return spans
