"""A prefill pass: the next stretch of several prompts, what is measured of it, the first token of those that end in it;
and a step of the lanes that decode meanwhile.

Knows nothing of drafts or of when a prefill is due.
"""

from __future__ import annotations

from collections.abc import Sequence
from time import perf_counter
from typing import Protocol

from tandem.keys import MAX_TREE_ROWS, Kind
from tandem.runtime.acceptance import pick
from tandem.runtime.executor.base import Executor, Outcome
from tandem.runtime.lane import Lane
from tandem.runtime.logprobs import TokenLogprob, measure
from tandem.runtime.meter import Plain
from tandem.runtime.pages import PageTable
from tandem.runtime.request import FinishReason
from tandem.runtime.rows import Span, extend_rows
from tandem.runtime.shares import even_shares, quick_shares
from tandem.runtime.slots import StateSlots
from tandem.runtime.steps import Steps

LEAST_ROWS = MAX_TREE_ROWS
"""A pass may always have as many rows as the widest verify: those of a short prompt, which is the unit of waiting."""
ALONE, IN_COMPANY = 1.75, 1.25
"""What a pass may cost, in passes of a short prompt: so long may those wait who come next, and those who are there."""
COUNT_STEP = 8
"""Rows between the counts that are tried where one program takes any."""


class Prices(Protocol):
    """Knows what passes cost."""

    def ms(self, context: int, kind: Kind, rows: int) -> float: ...


class Prefill:
    """Brings prompts in over one executor; `chunk` bounds the rows that one of them takes of a pass.

    Lanes that decode take a row each off the prompts, for one of `steps`.
    """

    def __init__(
        self,
        executor: Executor,
        pages: PageTable,
        slots: StateSlots,
        steps: Steps,
        *,
        prices: Prices,
        chunk: int | None = None,
    ) -> None:
        self._executor, self._pages, self._slots = executor, pages, slots
        self._steps, self._prices = steps, prices
        most = executor.geometry.max_rows
        self._chunk = chunk or most
        programs = {rows for kind, _, rows in executor.entries if kind is Kind.EXTEND and rows >= LEAST_ROWS}
        self._counts = sorted({*(programs or range(LEAST_ROWS, most, COUNT_STEP)), most})

    def run(self, lanes: Sequence[Lane], decoding: Sequence[Lane] = (), *, alone: bool) -> None:
        """One pass over `lanes`, whose prompts are not all in, in which those `decoding` take a step. `alone`: no other
        request has a lane.
        """
        began = perf_counter()
        dealt = self._dealt(lanes, len(decoding), ALONE if alone else IN_COMPANY)
        anchors = [Span(lane.index, lane.kv_length, lane.ids[-1:], 1) for lane in decoding]
        rows = extend_rows([*anchors, *[span for _, span in dealt]], self._pages.table, self._slots.table)
        outcome = self._steps.run(rows, decoding)
        tokens = self._steps.commit(decoding, outcome, Plain.MIXED) if decoding else []
        measured, first = self._read(dealt, len(decoding), outcome)
        elapsed = (perf_counter() - began) * 1e3
        for lane, _ in dealt:
            lane.stats.prefill_ms += elapsed
        for lane in decoding:
            lane.stats.decode_ms += elapsed
        for lane, logprobs in measured:
            lane.deliver_prompt(logprobs)
        for lane, token in first:
            lane.append([token])
            lane.inform([], [token])
            lane.deliver([token])
        for lane, committed in zip(decoding, tokens, strict=True):
            lane.deliver(committed)

    def _read(
        self, dealt: Sequence[tuple[Lane, Span]], row: int, outcome: Outcome
    ) -> tuple[list[tuple[Lane, list[TokenLogprob]]], list[tuple[Lane, int]]]:
        """What the spans `dealt`, the first of which stands at `row` and has that output, were for: the logprobs of
        prompts, and first tokens.
        """
        measured, first, output = list[tuple[Lane, list[TokenLogprob]]](), list[tuple[Lane, int]](), row
        for lane, span in dealt:
            lane.inform(range(row, row + len(span.tokens)), [])
            row += len(span.tokens)
            if lane.measures_prompt:
                measured.append((lane, self._measured(lane, span, output)))
            output += span.outputs
            lane.kv_length += len(span.tokens)
            if lane.kv_length == len(lane.ids):
                if lane.num_left:
                    first.append((lane, pick(lane, self._executor, outcome, output - 1)))
                else:
                    lane.finish = FinishReason.LENGTH
        return measured, first

    def _dealt(self, lanes: Sequence[Lane], num_decoding: int, cost: float) -> list[tuple[Lane, Span]]:
        """One span per lane, as far as the rows and outputs of a pass go that has one for each of those decoding."""
        total = self._rows(max(lane.kv_length + 1 for lane in lanes), cost) - num_decoding
        shares, dealt = quick_shares(self._needs(lanes, num_decoding), total), list[tuple[Lane, Span]]()
        for lane, share in zip(lanes, shares, strict=True):
            tokens, end = lane.ids[lane.kv_length : lane.kv_length + share], lane.kv_length + share
            if share:
                outputs = share if lane.measures_prompt else int(end == len(lane.ids) and lane.num_left > 0)
                dealt.append((lane, Span(lane.index, lane.kv_length, tokens, outputs)))
        return dealt

    def _needs(self, lanes: Sequence[Lane], num_decoding: int) -> list[int]:
        """Rows that each lane has a use for, and that there are outputs for: a prompt that is measured wants all of its
        own, and no other lane more than one.
        """
        needs = [min(lane.stretch, self._chunk) for lane in lanes]
        measuring = [place for place, lane in enumerate(lanes) if lane.measures_prompt]
        spare = self._executor.geometry.max_outputs - num_decoding - (len(lanes) - len(measuring))
        shares = even_shares([needs[place] for place in measuring], spare)
        for place, share in zip(measuring, shares, strict=True):
            needs[place] = share
        return needs

    def _measured(self, lane: Lane, span: Span, first: int) -> list[TokenLogprob]:
        """Of the prompt's tokens behind the rows of `span`, whose outputs begin with `first`."""
        count = lane.ticket.request.prompt_logprobs or 0
        followers = lane.ids[span.start + 1 : span.start + 1 + len(span.tokens)]
        return [measure(self._executor.logits(first + i), token, count) for i, token in enumerate(followers)]

    def _rows(self, context: int, cost: float) -> int:
        """The most rows of a pass at `context` that may cost so much."""
        limit = cost * self._prices.ms(LEAST_ROWS, Kind.EXTEND, LEAST_ROWS)
        dear = (i for i, rows in enumerate(self._counts) if self._prices.ms(context, Kind.EXTEND, rows) > limit)
        return self._counts[max(next(dear, len(self._counts)) - 1, 0)]
