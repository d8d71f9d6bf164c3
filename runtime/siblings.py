"""Siblings: requests that came together with one prompt, whose whole pages are brought in once and shared.

The first that has a lane brings them in. Others that have one meanwhile hold the same pages, take no rows until all is
there, and go on behind it; those that come later find a sibling that has it, or begin anew. Which of them did the work
shows in no text. Knows nothing of queues, of when a pass is due, or of what tokens become.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from tandem.runtime.drafters.group import DraftGroup
from tandem.runtime.executor.base import Executor
from tandem.runtime.executor.snapshot import Snapshot
from tandem.runtime.lane import Lane
from tandem.runtime.meter import Meter
from tandem.runtime.pages import PageTable
from tandem.runtime.request import Ticket
from tandem.runtime.slots import StateSlots


@dataclass(slots=True, eq=False)
class Family:
    """Siblings, who share the pages of their prompt's first `length` tokens.

    `ahead` are those that have not begun, with a lane or without. Of those with one, `waiting` have none of the prompt
    in, and `begun` bring it in, or have it. All hold the same pages. `state` is the recurrent one behind them, kept as
    long as it may be of use.
    """

    length: int
    ahead: set[Ticket]
    waiting: list[Lane] = field(default_factory=list)
    begun: list[Lane] = field(default_factory=list)
    state: Snapshot | None = None

    @property
    def lanes(self) -> list[Lane]:
        return [*self.begun, *self.waiting]

    @property
    def sources(self) -> list[Lane]:
        """Those that have all in that is shared."""
        return [lane for lane in self.begun if lane.kv_length >= self.length]


class Siblings:
    """The families among the requests of one engine, whose lanes' pages stand in `pages` and their states in `slots`.

    `meet` may be called from any thread, all else belongs to the engine's.
    """

    def __init__(
        self, executor: Executor, pages: PageTable, slots: StateSlots, meter: Meter, models: DraftGroup | None
    ) -> None:
        self._executor, self._pages, self._slots = executor, pages, slots
        self._meter, self._models = meter, models
        self._families: dict[Ticket, Family] = {}
        self._open: list[Family] = []  # that have a lane, and somebody ahead

    def meet(self, tickets: Iterable[Ticket]) -> None:
        """Makes siblings of those tickets that have one prompt, of more than a page.

        A prompt that is measured is nobody's: all of its rows are wanted. The last token is not shared, for each has a
        first token to draw from its row.
        """
        alike = dict[tuple[int, ...], list[Ticket]]()
        for ticket in tickets:
            if ticket.request.prompt_logprobs is None:
                alike.setdefault(ticket.request.prompt, []).append(ticket)
        for prompt, some in alike.items():
            length = len(prompt) - 1 - (len(prompt) - 1) % self._pages.page_tokens
            if length and len(some) > 1:
                self._families |= dict.fromkeys(some, Family(length, set(some)))

    def reserve(self, lane: int, ticket: Ticket, num_slots: int) -> bool:
        """Pages of `num_slots` for `ticket`, which is to have `lane`: of what is shared those that a sibling has."""
        family = self._families.get(ticket)
        if family is None or not family.lanes:
            return self._pages.reserve(lane, num_slots)
        return self._pages.reserve(lane, num_slots, like=family.lanes[0].index, shared=family.length)

    def join(self, lane: Lane) -> bool:
        """A lane with its pages; whether it has siblings, so that `ready` says when its prompt is to come in."""
        family = self._families.get(lane.ticket)
        if family is None:
            return False
        family.waiting.append(lane)
        if family not in self._open:
            self._open.append(family)
        return True

    def ready(self) -> list[Lane]:
        """Lanes whose prompts are to come in from now on. To be called between any two passes."""
        if not self._open:
            return []
        lanes = [lane for family in self._open for lane in self._begin(family)]
        self._tidy()
        return lanes

    def leave(self, ticket: Ticket) -> None:
        """A request has ended, whether it had a lane or not."""
        family = self._families.pop(ticket, None)
        if family is None:
            return
        family.ahead.discard(ticket)
        family.waiting = [lane for lane in family.waiting if lane.ticket is not ticket]
        family.begun = [lane for lane in family.begun if lane.ticket is not ticket]
        if not family.begun:
            family.state = None
        self._tidy()

    def _tidy(self) -> None:
        """Keeps nothing of families in which there is nobody to wait for anything."""
        for family in self._open:
            if not family.ahead:
                family.state = None
        self._open = [family for family in self._open if family.ahead and family.lanes]

    def _begin(self, family: Family) -> list[Lane]:
        """Those of `family` that have waited long enough: all, or where nobody is at the prompt the first of them."""
        if sources := family.sources:
            lanes = family.waiting
            if self._executor.num_slots and family.state is None:
                # The one that has just brought it in has halted there, and no pass was since.
                family.state = self._executor.save(self._slots.table[sources[0].index], family.length)
            for lane in lanes:
                self._share(family, sources, lane)
        else:
            lanes = [] if family.begun else family.waiting[:1]
            for lane in lanes:
                lane.halt = family.length if len(family.ahead) > 1 else 0  # it is for others to go on from
        family.waiting = family.waiting[len(lanes) :]
        family.begun += lanes
        family.ahead.difference_update(lane.ticket for lane in lanes)
        return lanes

    def _share(self, family: Family, sources: list[Lane], lane: Lane) -> None:
        if family.state is not None:
            self._executor.restore(self._slots.table[lane.index], family.state)
        if self._models:
            self._models.share(lane.index, [source.index for source in sources], family.length)
        lane.kv_length = family.length
        self._meter.prefix_hits.add(family.length)
