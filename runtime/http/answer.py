"""One answer in flight, as asyncio sees it: events from the engine's thread, cancelled when the client hangs up.

Knows nothing of bodies or formats.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Coroutine, Sequence
from types import TracebackType
from typing import Any, TypeVar

from msgspec import UNSET
from starlette.types import Receive

from tandem.errors import CapacityError, TandemError
from tandem.runtime.delivery import End, Event
from tandem.runtime.http.prompts import Order
from tandem.runtime.http.replies import CompletionDetails, Usage
from tandem.runtime.logprobs import TokenLogprob
from tandem.runtime.request import FinishReason
from tandem.runtime.service import Service

Result = TypeVar("Result")


class ClientGone(Exception):
    """The client hung up; there is nobody to answer."""


class Answer:
    """Submits on creation. Leaving the `with` block before the end cancels the request, after it does nothing."""

    def __init__(self, service: Service, order: Order) -> None:
        self._loop = asyncio.get_running_loop()
        self._events: asyncio.Queue[Event] = asyncio.Queue()
        self._ended = False
        self._worker = service.worker
        self._prompt_tokens = len(order.request.prompt)
        self._asked = order.request.logprobs is not None
        self._no_thoughts = None if service.thinking is None else 0
        self._ticket = service.submit(order.request, order.stops, self._emit)

    def _emit(self, event: Event) -> None:
        # Called in the engine's thread, which must outlive a loop that has closed.
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._events.put_nowait, event)

    async def event(self, patience: float | None = None) -> Event | None:
        """The next event, None when none came for `patience` seconds. Raises the engine's error of a failed answer."""
        try:
            async with asyncio.timeout(patience):
                event = await self._events.get()
        except TimeoutError:
            return None
        if isinstance(event, End):
            self._ended = True
            if event.error is not None or event.reason is FinishReason.ERROR:
                raise event.error or TandemError("the engine gave up on this request")
            if event.reason is FinishReason.CANCELLED:
                raise CapacityError("the server is shutting down", status=503)
        return event

    async def whole(self) -> tuple[str, list[TokenLogprob] | None, End]:
        """The whole text and its logprobs, once it has ended."""
        texts, logprobs = list[str](), list[TokenLogprob]()
        while not isinstance(event := await self.event(), End):
            if event is not None:
                texts.append(event.text)
                logprobs += event.logprobs
        return "".join([*texts, event.text]), self.told([*logprobs, *event.logprobs]), event

    def told(self, logprobs: Sequence[TokenLogprob]) -> list[TokenLogprob] | None:
        """None where they are not asked for."""
        return [*logprobs] if self._asked else None

    def usage(self, event: Event | None) -> Usage:
        """The counts up to `event`; None stands for the beginning."""
        if event is None:
            tokens, thoughts = 0, self._no_thoughts
        else:
            tokens = len(event.ids) if isinstance(event, End) else event.num_tokens
            thoughts = event.num_reasoning
        details = UNSET if thoughts is None else CompletionDetails(thoughts)
        return Usage(self._prompt_tokens, tokens, self._prompt_tokens + tokens, details)

    def __enter__(self) -> Answer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if not self._ended:
            self._worker.cancel(self._ticket)


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
