"""Plays one wave of a crowd through an engine, round by round, and holds what each request was promised.

Its ids, its turn in the queue, an end to every wait, and that a cancel is heeded. Knows nothing of how ids were made.
"""

from __future__ import annotations

from collections.abc import Sequence

from tandem.errors import CapacityError, TandemError
from tandem.runtime.checks.company import Company
from tandem.runtime.checks.crowd import Stage
from tandem.runtime.checks.guest import Guest
from tandem.runtime.checks.lanes_report import LanesReport
from tandem.runtime.engine import Engine
from tandem.runtime.request import FinishReason

A_TURN = 2
"""Rounds to a prefill pass, as those and rounds of drafts take turns; a lane that decodes has tokens of either."""


class Wave:
    """Wave `number` of `guests` in the order of their coming, over an `engine` that is idle and ends so.

    `chunk` is the engine's prefill size, under which the wave is counted in `report`. TandemError when a wave does not
    end.
    """

    def __init__(
        self, number: int, guests: Sequence[Guest], engine: Engine, company: Company, chunk: int, report: LanesReport
    ) -> None:
        self._number, self._engine, self._company, self._report = number, engine, company, report
        self._tally, self._chunk = report.tally(chunk), chunk
        self._last = guests[-1].visit.number
        self._coming = list(guests)
        self._queue: list[Guest] = []
        self._served: list[Guest] = []  # those with a lane, in the order of admission
        self._now = 0
        self._most = sum(A_TURN * (guest.work + 1) for guest in guests) + guests[-1].visit.due

    def play(self) -> None:
        while self._coming or self._queue or self._served:
            if not (self._queue or self._served):
                self._now = max(self._now, self._coming[0].visit.due)
            self._arrive()
            self._hang_up()
            self._engine.step()
            self._admit()
            self._look()
            self._now += 1
            if self._now > self._most:
                raise TandemError(f"the engine does not get on: round {self._now} of wave {self._number}, {self._who}")
        self._come_back()

    @property
    def _who(self) -> str:
        numbers = (str(guest.visit.number) for guest in self._served)
        return f"{len(self._queue)} in the queue, with lanes: {' '.join(numbers) or 'none'}"

    def _arrive(self) -> None:
        while self._coming and self._coming[0].visit.due <= self._now:
            guest = self._coming[0]
            try:
                guest.ticket = self._engine.submit(guest.request, guest)
            except CapacityError:
                self._report.refused += 1
                return
            # Each round takes a pass off the work of those before it, of which one at least has a lane.
            guest.since, guest.patience = self._now, sum(other.work for other in (*self._queue, *self._served))
            self._queue.append(self._coming.pop(0))

    def _hang_up(self) -> None:
        for guest in (*self._queue, *self._served):
            if guest.ticket is None or not guest.leaves(self._now):
                continue
            guest.hung_up = True
            assert guest.visit.hang_up is not None
            if guest.visit.hang_up.within:
                self._company.hang_ups.append(guest.ticket)
            else:
                guest.had = guest.got
                self._engine.cancel(guest.ticket)

    def _admit(self) -> None:
        """Moves those that were given lanes, the queue's first, out of it, and those that ended without."""
        place = {ticket: i for i, ticket in enumerate(self._engine.running)}
        came = [guest for guest in self._queue if guest.ticket in place or guest.stats.prefill_ms or guest.ids]
        left = [guest for guest in self._queue if guest.reason and guest not in came]
        stayed = [guest for guest in self._queue if guest not in left]
        places = [place[guest.ticket] for guest in came if guest.ticket in place]
        if came != stayed[: len(came)] or places != sorted(places):
            self._blame(stayed[0], "is no longer served before those behind it: the queue's order is not kept")
        for guest in came:
            self._moves_on(guest, Stage.PREFILL, A_TURN * guest.chunks)
        self._queue, self._served = [g for g in stayed if g not in came], self._served + came
        for guest in left:
            self._end(guest)

    def _look(self) -> None:
        """At each guest once a round has been played: who got ids, who ended, who waits for too long."""
        for guest in (*self._queue, *self._served):
            if len(guest.ids) > guest.got:
                guest.got = len(guest.ids)
                self._moves_on(guest, Stage.DECODING, 1)
            if guest.reason:
                self._end(guest)
            elif guest.hung_up:
                self._blame(guest, "did not end within a round of its cancel")
            elif self._now - guest.since > guest.patience:
                self._blame(guest, f"waits for more than {guest.patience} rounds, {guest.stage}")
                guest.patience = self._most  # once is enough
        self._served = [guest for guest in self._served if not guest.reason]

    def _moves_on(self, guest: Guest, stage: Stage, patience: int) -> None:
        waited = self._now - guest.since
        self._report.waited(guest.stage, waited)
        if waited > guest.patience:
            self._blame(guest, f"waited for {waited} rounds and not at most {guest.patience}, {guest.stage}")
        guest.stage, guest.since, guest.patience = stage, self._now, patience

    def _end(self, guest: Guest) -> None:
        tally, astray, cancelled = self._tally, guest.astray(), guest.reason is FinishReason.CANCELLED
        tally.requests += 1
        tally.cancelled += cancelled
        tally.rounds += guest.stats.rounds
        tally.tokens += len(guest.ids)
        tally.drafted += guest.stats.drafted
        tally.accepted += guest.stats.accepted
        tally.differing_ids += len(astray)
        if cancelled:
            self._report.hung_up[guest.stage] += 1
        if astray:
            i = astray[0]
            wanted, found = ([*ids, None][min(i, len(ids))] for ids in (guest.wanted, guest.ids))
            self._blame(guest, f"has id {found} at {i} of its answer, alone {wanted}")
        for fault in guest.faults():
            self._blame(guest, fault)

    def _come_back(self) -> None:
        engine, company = self._engine, self._company
        left = {
            "requests": engine.num_running + engine.num_waiting,
            "pages": company.num_pages - engine.num_free_pages,
            "slots": company.num_slots - engine.num_free_slots,
        }
        for what, count in left.items():
            if count:
                self._blame(None, f"{count} {what} did not come back")

    def _blame(self, guest: Guest | None, what: str) -> None:
        where = f"wave {self._number} in chunks of {self._chunk}, round {self._now} ({self._who})"
        who = f"{guest.visit} {what}" if guest else what
        self._report.blame(self._last, f"{who}; {where}")
