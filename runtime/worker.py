"""The thread that owns an engine, and a door to it for all other threads.

Knows nothing of what a request holds.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from threading import Condition, Thread

from tandem.errors import CapacityError
from tandem.prices import PriceModel
from tandem.runtime.engine import Engine
from tandem.runtime.live import Occupancy
from tandem.runtime.meter import Meter
from tandem.runtime.metrics import Family, Gauge
from tandem.runtime.request import Request, Sink, Ticket

STOP_SECONDS = 60.0
"""How long `stop` waits for the pass at hand, longer than any takes: a device that hangs holds no process for ever."""

log = logging.getLogger("tandem.runtime")


class Worker:
    """Steps `engine` while there is work and sleeps while there is none. Every method may be called from any thread.

    `healthy` turns False for good when a pass fails; then all requests have ended with ERROR and none is taken. What
    is in `closing` is called when the engine is closed.
    """

    def __init__(self, engine: Engine, closing: Sequence[Callable[[], None]] = ()) -> None:
        self._engine, self._closing = engine, closing
        self._changed = Condition()
        self._accepting = True
        self._stopping = False
        self._left_behind = False
        self._idle = True
        self.healthy = True
        self._thread = Thread(target=self._serve, name="tandem-engine", daemon=True)

    @property
    def num_running(self) -> int:
        return self._engine.num_running

    @property
    def num_waiting(self) -> int:
        return self._engine.num_waiting

    @property
    def num_free_pages(self) -> int:
        return self._engine.num_free_pages

    @property
    def meter(self) -> Meter:
        return self._engine.meter

    @property
    def prices(self) -> PriceModel:
        return self._engine.prices

    def occupancy(self) -> Occupancy:
        engine, num_pages = self._engine, self._engine.executor.num_pages
        return Occupancy(
            busy_lanes=engine.num_running,
            lanes=engine.num_lanes,
            waiting=engine.num_waiting,
            places=engine.max_queue,
            reserved_pages=num_pages - engine.num_free_pages,
            pages=num_pages,
        )

    def metrics(self) -> Iterable[Family]:
        """All that is counted, and the state of the moment."""
        engine = self._engine
        num_pages = engine.executor.num_pages
        yield Gauge("num_requests_running", "Requests that have a lane.", lambda: engine.num_running)
        yield Gauge("num_requests_waiting", "Requests that wait for one.", lambda: engine.num_waiting)
        yield Gauge(
            "kv_cache_usage_perc",
            "Share of the KV pages that requests have reserved, 0 to 1.",
            lambda: 1 - engine.num_free_pages / num_pages,
        )
        yield from engine.meter.families()

    def start(self) -> None:
        self._thread.start()

    def submit(self, request: Request, sink: Sink) -> Ticket:
        """`submit_all` of one."""
        return self.submit_all([(request, sink)])[0]

    def submit_all(self, asked: Sequence[tuple[Request, Sink]]) -> list[Ticket]:
        """As `Engine.submit_all`; also CapacityError (503) when draining, stopped or unhealthy."""
        with self._changed:
            if not self._accepting:
                state = "shutting down" if self.healthy else "out of service after a failed pass"
                raise CapacityError(f"the engine is {state}; send the request elsewhere", status=503)
            tickets = self._engine.submit_all(asked)
            self._idle = False
            self._changed.notify_all()
        return tickets

    def cancel(self, ticket: Ticket) -> None:
        """As `Engine.cancel`."""
        with self._changed:
            self._engine.cancel(ticket)
            self._changed.notify_all()

    def drain(self, timeout: float | None = None) -> bool:
        """Take no more requests and wait, at most `timeout` seconds, for those in flight; whether all have ended."""
        with self._changed:
            self._accepting = False
            return self._changed.wait_for(lambda: self._idle, timeout)

    def stop(self) -> None:
        """Cancel what is in flight, close the engine and end the thread. May be called twice."""
        with self._changed:
            self._accepting = False
            self._stopping = True
            self._changed.notify_all()
        if self._thread.ident is None:
            self._close()
        else:
            self._thread.join(0 if self._left_behind else STOP_SECONDS)
            if self._thread.is_alive() and not self._left_behind:
                self._left_behind = True
                log.error("a pass has not ended in %g s; it is left behind", STOP_SECONDS)

    def _serve(self) -> None:
        try:
            while self._await_work():
                # Between two passes every lock counts, so the door is looked at only when the engine is idle.
                while self._engine.step() and not self._stopping:
                    pass
        except Exception as error:
            log.exception("a pass failed; the engine is out of service")
            with self._changed:
                self.healthy = self._accepting = False
            self._engine.fail(error)  # also ends what was submitted meanwhile
        try:
            self._close()
        except Exception as error:  # a device that is gone takes nothing back
            log.error("the engine does not close: %s", error)
        with self._changed:
            self._idle = True
            self._changed.notify_all()

    def _close(self) -> None:
        try:
            self._engine.close()
        finally:
            for close in self._closing:
                close()

    def _await_work(self) -> bool:
        """Sleep until there is work; False when it is time to stop."""
        with self._changed:
            # Set here and not read from the engine: between steps, so no request is half ended.
            self._idle = not (self._engine.num_running or self._engine.num_waiting)
            if self._idle:
                self._changed.notify_all()
            self._changed.wait_for(lambda: self._stopping or not self._idle)
            return not self._stopping
