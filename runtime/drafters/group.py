"""The model drafter of all lanes of an engine: who drafts with it, which taps are kept, when it reads them.

Taps it has not read stay in their ring, so that rounds which draft nothing cost nothing: they are read with the next
draft, or when the ring is short. Knows nothing of what the model is, of texts or of the other drafters.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from tandem.keys import Kind
from tandem.runtime.drafters.base import Drafter
from tandem.runtime.drafters.blocks import Blocks
from tandem.runtime.drafters.chain import Chains
from tandem.runtime.drafters.passes import DraftPasses, Prices
from tandem.runtime.drafters.reader import Seat, TapReader
from tandem.runtime.drafters.strategy import Strategy
from tandem.runtime.drafters.taps import TapRing
from tandem.runtime.executor.base import Executor, Outcome, Rows
from tandem.runtime.meter import Lost, Meter
from tandem.runtime.pages import PageTable

log = logging.getLogger("tandem.runtime")

LEAST_TOKENS = 3
"""The first token of an answer comes out of the prefill, and the last one is never drafted: fewer draft nothing."""
FOLLOW = 0.1  # weight of a new answer in how long they usually are


class Turns(Protocol):
    """Knows which requests the model is worth its time for."""

    def turn_pays(self, context: int, backlog: int, num_tokens: float, sync_ms: float) -> bool:
        """Whether reading `backlog` rows, at `sync_ms` each, pays in an answer of `num_tokens` more tokens."""
        ...


class Decoding(Protocol):
    """What is asked of a lane that decodes."""

    index: int
    model: Drafter | None

    @property
    def num_left(self) -> int: ...


class DraftGroup:
    """Drafts over the executor of an engine, which has a drafter, whose lanes' pages stand in `pages`.

    A `frugal` one drafts for no lane for which that cannot pay at `prices`, whatever the router wants. An exception or
    a guess that is none costs its lanes the model for the request, and nothing else.
    """

    def __init__(
        self,
        executor: Executor,
        pages: PageTable,
        *,
        turns: Turns,
        prices: Prices,
        meter: Meter,
        frugal: bool = False,
    ) -> None:
        g, facts = executor.geometry, executor.geometry.drafter
        assert facts is not None, "there is one only over a bundle with a drafter"
        self._executor, self._turns, self._prices, self._meter = executor, turns, prices, meter
        self._frugal = frugal
        self._ring = ring = TapRing(facts.tap_rows, g.max_lanes)
        self._passes = passes = DraftPasses(executor, pages, prices, meter)
        self._strategy: Strategy[Any] = Chains(passes, ring, prices, self._unsound)
        self._longest = g.context_length  # text over which there is room to draft
        if block := facts.block:
            most = min(g.verify_rows, g.max_outputs)
            self._strategy = Blocks(passes, block, most, prices, ring.claim, self._unsound)
            self._longest = min(g.context_length, block.context_length) - block.rows + 1
        self._members: dict[int, Member] = {}
        self._usual = math.inf  # tokens of an answer that is long enough; most end long before they have to

    @property
    def source(self) -> str:
        """Of its trees."""
        return self._strategy.source

    @property
    def num_free_taps(self) -> int:
        return self._ring.num_free

    def open(self, lane: int, num_prompt: int, max_length: int) -> Drafter | None:
        """The drafter of `lane`, whose text may have `max_length` ids; None if its request is to go without."""
        if max_length - num_prompt < LEAST_TOKENS:
            return None
        if num_prompt >= self._longest:
            self._meter.lost.add(Lost.CONTEXT)
            return None
        max_length = min(max_length, self._longest)
        if not self._pays(num_prompt, num_prompt, max_length - num_prompt):
            self._meter.lost.add(Lost.TURN)
            return None
        drafter: TapReader = self._strategy.drafter(lane)
        self._members[lane] = Member(drafter, max_length)
        return drafter

    def close(self, lane: int, num_tokens: int) -> None:
        """A lane has ended with an answer of so many tokens, drafted by the model or not."""
        self._drop(lane)
        if num_tokens >= LEAST_TOKENS:
            known = self._usual < math.inf
            self._usual = self._usual + FOLLOW * (num_tokens - self._usual) if known else num_tokens

    def share(self, lane: int, sources: Sequence[int], length: int) -> None:
        """`lane`, of whose prompt nothing came in, has its first `length` positions in pages that `sources` hold too.

        K and V of the drafter stand in the same pages, once one of those has read so far: its taps are nobody else's.
        """
        if not (member := self._members.get(lane)):
            return
        readers = [self._members[one].drafter for one in sources if one in self._members]
        source = next((reader for reader in readers if reader.seen >= length), None)
        if source is None:
            self._lose(lane, Lost.SHARED)
            return
        try:
            while (count := min(length - source.first, self._passes.max_rows)) > 0:
                self._passes.sync([source.backlog(count)])
                self._ring.give(source.read(count))
            member.drafter.skip(length)
        except Exception:
            self._fail([source.lane, lane])

    def run(self, kind: Kind, rows: Rows) -> Outcome:
        """A pass of the target, whose rows leave their taps where their lanes draft with the model."""
        self._ring.sweep()
        if self._members:
            self._make_room(rows.lane)
            rows.tap_out = self._ring.place([lane in self._members for lane in rows.lane])
        return self._executor.run(kind, rows)

    def seats(self, lanes: Sequence[Decoding], most: int) -> Sequence[Seat[Any]]:
        """Who of `lanes` is to draft in the round at hand, in which `most` nodes may be drafted."""
        depth, seats = self._strategy.depth(most // len(lanes)), list[Seat[Any]]()
        for lane in lanes:
            if member := self._members.get(lane.index):
                if lane.model is None:  # an exception of its own, so it hears of nothing any more
                    self._lose(lane.index, Lost.FAILED)
                elif member.num_left < 0:
                    self._lose(lane.index, Lost.CONTEXT)
                elif (steps := min(depth, lane.num_left - 1)) > 0:
                    seats.append(Seat(member.drafter, steps))
        return self._strategy.paying(seats, len(lanes)) if seats and self._frugal else seats

    def draft(self, seats: Sequence[Seat[Any]], num_lanes: int) -> None:
        """Guesses for the round at hand, which has `num_lanes` lanes."""
        try:
            self._catch_up([seat.drafter for seat in seats], self._strategy.kept * self._passes.max_rows)
            self._strategy.draft(seats, num_lanes)
        except Exception:
            self._fail([seat.drafter.lane for seat in seats])

    def _make_room(self, lanes: Sequence[int]) -> None:
        """Reads what is pending, most of it first, until there is room for a tap of each of these rows of members.

        Who is so far behind that reading does not pay, or in whose way there is nothing but the pass itself, goes on
        without the model.
        """
        while sum(lane in self._members for lane in lanes) > self._ring.num_free:
            behind = max(self._members.values(), key=lambda member: len(member.drafter.pending))
            drafter, backlog = behind.drafter, len(behind.drafter.pending) - self._strategy.kept
            if behind.num_left < 0:
                self._lose(drafter.lane, Lost.CONTEXT)
            elif backlog < 1:
                self._lose(max(self._members, key=lanes.count), Lost.BEHIND)
            elif not self._pays(len(drafter.ids), backlog, behind.num_left):
                self._lose(drafter.lane, Lost.BEHIND)
            else:
                try:
                    self._catch_up([drafter], self._strategy.kept)
                except Exception:
                    self._fail([drafter.lane])

    def _pays(self, context: int, backlog: int, num_left: int) -> bool:
        rows = min(backlog, self._passes.max_rows)
        sync_ms = self._prices.ms(context, Kind.SYNC, rows) / rows
        return self._turns.turn_pays(context, backlog, min(num_left, self._usual), sync_ms)

    def _catch_up(self, drafters: Sequence[TapReader], most: int) -> None:
        """Reads the oldest of what is pending of `drafters`, until `most` rows are: of each what is kept is left."""
        while (over := sum(len(drafter.pending) for drafter in drafters) - most) > 0:
            room, spans = min(over, self._passes.max_rows), list[tuple[TapReader, int]]()
            for drafter in drafters:
                if count := min(len(drafter.pending) - self._strategy.kept, room):
                    spans.append((drafter, count))
                    room -= count
            self._passes.sync([drafter.backlog(count) for drafter, count in spans])
            for drafter, count in spans:
                self._ring.give(drafter.read(count))

    def _unsound(self, drafter: TapReader) -> None:
        log.warning("the model drafter gave what is no guess; its lane goes on without")
        self._lose(drafter.lane, Lost.FAILED)

    def _fail(self, lanes: Sequence[int]) -> None:
        log.exception("a pass of the model drafter failed; its lanes go on without")
        for lane in lanes:
            self._lose(lane, Lost.FAILED)

    def _lose(self, lane: int, why: Lost) -> None:
        if lane in self._members:
            self._meter.lost.add(why)
            self._drop(lane)

    def _drop(self, lane: int) -> None:
        if member := self._members.pop(lane, None):
            self._ring.give(member.drafter.lose())


@dataclass(frozen=True, slots=True)
class Member:
    """A lane's drafter, over whose text it drafts as long as there are at most `max_length` ids."""

    drafter: TapReader
    max_length: int

    @property
    def num_left(self) -> int:
        return self.max_length - len(self.drafter.ids)
