"""The answers to one HTTP request in flight, as asyncio sees them: events from the engine's thread, cancelled when the
client hangs up.

Knows nothing of bodies or formats.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Coroutine
from functools import partial
from types import TracebackType
from typing import Any, TypeVar

from starlette.types import Receive

from tandem.errors import CapacityError, TandemError
from tandem.runtime.delivery import Delta, End, Event, joined
from tandem.runtime.http.order import Order
from tandem.runtime.request import FinishReason
from tandem.runtime.service import Service

Result = TypeVar("Result")


class ClientGone(Exception):
    """The client hung up; there is nobody to answer."""


class Answers:
    """Submits all requests of `order` on creation, or none.

    Leaving the `with` block cancels those that have not ended.
    """

    def __init__(self, service: Service, order: Order) -> None:
        self._loop = asyncio.get_running_loop()
        self._events: asyncio.Queue[tuple[int, Event]] = asyncio.Queue()
        self._worker = service.worker
        asked = [(request, partial(self._emit, number)) for number, request in enumerate(order.requests)]
        self._running = dict(enumerate(service.submit_all(asked, order.rules)))

    def _emit(self, number: int, event: Event) -> None:
        # Called in the engine's thread, which must outlive a loop that has closed.
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._events.put_nowait, (number, event))

    @property
    def ended(self) -> bool:
        """Whether all have."""
        return not self._running

    async def event(self, patience: float | None = None) -> tuple[int, Event] | None:
        """The next event and the number of its request, None when none came for `patience` seconds.

        Raises the engine's error of a failed answer.
        """
        try:
            async with asyncio.timeout(patience):
                number, event = await self._events.get()
        except TimeoutError:
            return None
        if isinstance(event, End):
            del self._running[number]
            if event.error is not None or event.reason is FinishReason.ERROR:
                raise event.error or TandemError("the engine gave up on this request")
            if event.reason is FinishReason.CANCELLED:
                raise CapacityError("the server is shutting down", status=503)
        return number, event

    async def whole(self) -> list[End]:
        """Every answer as one event, once all have ended, in the order of the requests."""
        deltas, ends = dict[int, list[Delta]](), dict[int, End]()
        while not self.ended:
            if (came := await self.event()) is None:
                continue
            number, event = came
            if isinstance(event, End):
                ends[number] = joined(deltas.pop(number, []), event)
            else:
                deltas.setdefault(number, []).append(event)
        return [ends[number] for number in sorted(ends)]

    def __enter__(self) -> Answers:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        for ticket in self._running.values():
            self._worker.cancel(ticket)


async def unless_gone(receive: Receive, work: Coroutine[Any, Any, Result]) -> Result:
    """The result of `work`, which is cancelled when the client hangs up: then ClientGone is raised.

    `receive` must have given the whole body already.
    """
    task = asyncio.ensure_future(work)
    watch = asyncio.ensure_future(_hang_up(receive))
    try:
        await asyncio.wait((task, watch), return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise ClientGone
        return task.result()
    finally:
        task.cancel()
        watch.cancel()
        await asyncio.gather(task, watch, return_exceptions=True)


async def _hang_up(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
