"""The engine: requests in, tokens out, over one executor. Queue, admission, turns, and ends of lanes.

Knows nothing of text, HTTP, models or devices, and starts no thread.
"""

from __future__ import annotations

import logging
import math
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from threading import Lock
from time import perf_counter

from tandem.errors import CapacityError, RequestError, TandemError, UsageError
from tandem.keys import MAX_TREE_ROWS
from tandem.prices import PriceModel
from tandem.runtime.drafters.base import Drafter
from tandem.runtime.drafters.group import DraftGroup
from tandem.runtime.executor.base import Executor
from tandem.runtime.lane import Lane
from tandem.runtime.meter import Meter, Stopwatch
from tandem.runtime.pages import PageTable
from tandem.runtime.prefill import Prefill
from tandem.runtime.relaxed import Relaxation
from tandem.runtime.request import FinishReason, LaneStats, Request, Sink, Ticket
from tandem.runtime.round import Rounds, Router
from tandem.runtime.router.choice import make_router
from tandem.runtime.servable import require_servable
from tandem.runtime.siblings import Siblings
from tandem.runtime.slots import StateSlots
from tandem.runtime.steps import max_joint_rows

log = logging.getLogger("tandem.runtime")


class Engine:
    """Serves up to `max_lanes` requests at once, first come first served; `max_queue` more may wait.

    A request that is not answered `request_timeout` seconds after it came ends with what it has.

    `step` and `close` belong to one thread, which also calls the sinks; `submit`, `cancel` and the counts may come
    from any. `drafters` makes a drafter per lane, and with `models` that of the bundle drafts too, if there is one;
    neither decodes plainly. `router` is one, or the name of one over `prices` (`runtime.router.choice`), which without
    `learn_cost` goes by no wall time. `prefill_chunk` bounds the rows that one prompt takes of a pass. A `relaxation`
    changes greedy texts.
    """

    def __init__(
        self,
        executor: Executor,
        *,
        drafters: Callable[[], Drafter] | None,
        prices: PriceModel,
        models: bool = False,
        router: str | Router = "staircut",
        learn_cost: bool = True,
        max_lanes: int | None = None,
        max_queue: int = 64,
        request_timeout: float = math.inf,
        prefill_chunk: int | None = None,
        relaxation: Relaxation | None = None,
    ) -> None:
        g = executor.geometry
        bound = min(g.max_lanes, max_joint_rows(executor), executor.num_slots or g.max_lanes)
        if not 1 <= (max_lanes or bound) <= bound:
            raise UsageError(f"max_lanes is {max_lanes}; this bundle serves 1 to {bound} lanes")
        recurrent = executor.num_slots > 0
        self.num_lanes, self.max_queue = max_lanes or bound, max_queue
        self._timeout = request_timeout
        self.meter = Meter()
        self.executor, self.prices = executor, prices
        frugal = router == "staircut"  # others are to draft, whatever it costs
        if isinstance(router, str):
            declined = self.meter.plain_rounds.add
            block = g.drafter.block.rows if g.drafter and g.drafter.block else 1
            router = make_router(
                router, prices, recurrent=recurrent, learn_cost=learn_cost, block=block, declined=declined
            )
        self.router = router
        # A lane may use every page but those behind it that a verify writes.
        self.context_length = min(g.context_length, executor.num_pages * g.page_tokens - MAX_TREE_ROWS)
        if self.context_length < 2:
            raise CapacityError(f"{executor.num_pages} pages hold no request; give the KV cache more memory")
        self._drafters = drafters
        self._pages = PageTable(executor.num_pages, g.page_tokens, g.max_lanes, g.blocks_per_lane)
        self._slots = StateSlots(executor.num_slots, g.max_lanes)
        self._models: DraftGroup | None = None
        if models and g.drafter:
            self._models = DraftGroup(
                executor, self._pages, turns=self.router, prices=prices, meter=self.meter, frugal=frugal
            )
        self._rounds = Rounds(
            executor,
            self._pages,
            self._slots,
            router=self.router,
            prices=prices,
            meter=self.meter,
            models=self._models,
            relaxation=relaxation,
        )
        self._prefill = Prefill(
            executor, self._pages, self._slots, self._rounds.steps, prices=prices, chunk=prefill_chunk
        )
        self._idle_lanes = list(range(self.num_lanes - 1, -1, -1))
        self._lanes: list[Lane] = []
        self._prompts: list[Lane] = []  # lanes whose prompt is not all in, but for those that wait for a sibling's
        self._waiting: deque[Ticket] = deque()
        self._lock = Lock()  # guards `_waiting`
        self._siblings = Siblings(executor, self._pages, self._slots, self.meter, self._models)
        self._prefill_next = True

    @property
    def num_running(self) -> int:
        return len(self._lanes)

    @property
    def running(self) -> list[Ticket]:
        """What holds a lane, in the order of admission; for the engine's own thread."""
        return [lane.ticket for lane in self._lanes]

    @property
    def num_waiting(self) -> int:
        return len(self._waiting)

    @property
    def num_free_pages(self) -> int:
        return self._pages.num_free

    @property
    def num_free_slots(self) -> int:
        return self._slots.num_free

    def submit(self, request: Request, sink: Sink) -> Ticket:
        """Queue a request. Raises RequestError when it can never be served, CapacityError when the queue is full."""
        return self.submit_all([(request, sink)])[0]

    def submit_all(self, asked: Sequence[tuple[Request, Sink]]) -> list[Ticket]:
        """Queue several requests, or none: as `submit`, and RequestError for more than could ever wait together."""
        for request, _ in asked:
            require_servable(request, self.context_length, self.executor.geometry.vocab_size)
        if len(asked) > max(1, most := self.max_queue + self.num_lanes):
            raise RequestError(
                f"{len(asked)} answers are asked for at once, and at most {most} can wait; ask for fewer choices or"
                " prompts a request",
                param="n" if len({request.prompt for request, _ in asked}) == 1 else "prompt",
                code="too_many_choices",
            )
        tickets = [Ticket(request, Stopwatch(self.meter, request, sink)) for request, sink in asked]
        with self._lock:
            if len(self._waiting) + len(tickets) > self.max_queue + len(self._idle_lanes):
                raise CapacityError(f"{len(self._waiting)} requests are waiting already; try again later")
            if self.num_lanes > 1:
                self._siblings.meet(tickets)
            self._waiting += tickets
        return tickets

    def cancel(self, ticket: Ticket) -> None:
        """End a request before the next pass; one that has ended stays as it is."""
        ticket.cancelled = True

    def step(self) -> bool:
        """One prefill pass or one round, in turn when both are due; False when there is nothing to do.

        Lanes that decode go on in either. An executor's failure ends every request with ERROR and is raised.
        """
        self._reap()
        if self._waiting:
            self._admit()
        if not self._lanes:
            return False
        try:
            self._prompts += self._siblings.ready()
            prompts = self._prompts
            decoding = self._lanes if not prompts else [lane for lane in self._lanes if lane.decoding]
            if prompts and (self._prefill_next or not decoding):
                self._prefill.run(prompts, decoding, alone=len(self._lanes) == 1)
                self._prompts = [lane for lane in prompts if not lane.decoding]
                self._prefill_next = False
            else:
                self._rounds.play(decoding)
                self._prefill_next = True
        except Exception as error:
            self.fail(error)
            raise
        self._reap()
        return True

    def fail(self, cause: Exception) -> None:
        """End every request with ERROR."""
        error = TandemError(f"a pass failed ({cause}); the engine serves no more, restart it")
        self._end_all(FinishReason.ERROR, error)

    def close(self) -> None:
        """Cancel every request and close the executor."""
        self._end_all(FinishReason.CANCELLED, None)
        self.executor.close()

    def _admit(self) -> None:
        """Give waiting requests lanes and pages, in order; the first that does not fit holds back the rest."""
        while self._idle_lanes and self._waiting:
            request = self._waiting[0].request
            max_length = min(len(request.prompt) + request.max_tokens, self.context_length)
            if not self._siblings.reserve(self._idle_lanes[-1], self._waiting[0], max_length + MAX_TREE_ROWS):
                return
            with self._lock:
                ticket = self._waiting.popleft()
                index = self._idle_lanes.pop()
            self.meter.queued.observe(perf_counter() - ticket.asked)
            self.meter.prefix_queries.add(len(request.prompt))
            self._slots.take(index)
            self.router.open(index)
            model = partial(self._models.open, index, len(request.prompt), max_length) if self._models else None
            lane = Lane(index, ticket, max_length, self._drafters, model)
            self._lanes.append(lane)
            if not self._siblings.join(lane):
                self._prompts.append(lane)

    def _reap(self) -> None:
        """End lanes that are finished, cancelled or out of time, and waiting requests that are one of the latter."""
        for lane in tuple(self._lanes):
            if lane.finish is None and self._late(lane.ticket):
                lane.finish = FinishReason.TIMEOUT
            if lane.finish or lane.ticket.cancelled:
                self._end(lane, lane.finish or FinishReason.CANCELLED, lane.error)
        if not self._waiting:
            return
        with self._lock:
            dropped = [ticket for ticket in self._waiting if ticket.cancelled or self._late(ticket)]
            for ticket in dropped:
                self._waiting.remove(ticket)
        for ticket in dropped:
            stats, error = LaneStats(prompt_tokens=len(ticket.request.prompt)), None
            if not ticket.cancelled:
                error = CapacityError(f"no lane came free within {self._timeout:g} seconds; try again later")
            self._notify(ticket, FinishReason.ERROR if error else FinishReason.CANCELLED, stats, error)

    def _late(self, ticket: Ticket) -> bool:
        return perf_counter() - ticket.asked > self._timeout

    def _end(self, lane: Lane, reason: FinishReason, error: TandemError | None) -> None:
        # Free first: a sink may submit its next request at once.
        self._lanes.remove(lane)
        if lane in self._prompts:
            self._prompts.remove(lane)
        self._pages.release(lane.index)
        self._slots.release(lane.index)
        self.router.close(lane.index)
        if self._models:
            self._models.close(lane.index, lane.stats.completion_tokens)
        self._idle_lanes.append(lane.index)
        lane.end()
        self._notify(lane.ticket, reason, lane.stats, error)

    def _end_all(self, reason: FinishReason, error: TandemError | None) -> None:
        for lane in list(self._lanes):
            self._end(lane, reason, error)
        with self._lock:
            waiting, self._waiting = list(self._waiting), deque()
        for ticket in waiting:
            self._notify(ticket, reason, LaneStats(prompt_tokens=len(ticket.request.prompt)), error)

    def _notify(self, ticket: Ticket, reason: FinishReason, stats: LaneStats, error: TandemError | None) -> None:
        self._siblings.leave(ticket)
        try:
            ticket.sink.finished(reason, stats, error)
        except Exception:
            log.exception("a sink failed at its end")
