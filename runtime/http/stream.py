"""Server-sent events: the chunks of one answer as they come, pings while none comes, errors as data.

Knows nothing of engines beyond an `Answer`.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import AsyncGenerator

import msgspec
from msgspec import UNSET, UnsetType
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from tandem.errors import TandemError
from tandem.runtime.delivery import End, Event
from tandem.runtime.http.answer import Answer, ClientGone, unless_gone
from tandem.runtime.http.errors import describe
from tandem.runtime.http.replies import Letterhead, Shape, Usage
from tandem.runtime.http.schema import StreamOptions

PING_SECONDS = 15.0
PING = b": ping\n\n"
DONE = b"data: [DONE]\n\n"
_logger = logging.getLogger(__name__)


def data(body: object) -> bytes:
    return b"data: " + msgspec.json.encode(body) + b"\n\n"


async def chunks(
    answer: Answer, letterhead: Letterhead, shape: Shape, options: StreamOptions, ping_seconds: float = PING_SECONDS
) -> AsyncGenerator[bytes, None]:
    """One event a round, the finish reason in the last chunk of the choice, then the usage if it was asked for."""

    def usage(event: Event | None) -> Usage | UnsetType | None:
        if not options.include_usage:
            return UNSET
        return answer.usage(event) if options.continuous_usage_stats else None

    if (opening := shape.opening()) is not None:
        yield data(letterhead.chunk(opening, usage(None)))
    while not isinstance(event := await answer.event(ping_seconds), End):
        if event is None:
            yield PING
        else:
            choice = shape.piece(event.text, None, answer.told(event.logprobs))
            yield data(letterhead.chunk(choice, usage(event)))
    choice = shape.piece(event.text, event.reason.value, answer.told(event.logprobs))
    yield data(letterhead.chunk(choice, usage(event)))
    if options.include_usage:
        yield data(letterhead.chunk(None, answer.usage(event)))


class EventStream(Response):
    """Sends `events` and then [DONE]. A client that hangs up ends it at once, whatever it waits for."""

    media_type = "text/event-stream"

    def __init__(self, answer: Answer, events: AsyncGenerator[bytes, None]) -> None:
        super().__init__(headers={"cache-control": "no-cache", "x-accel-buffering": "no"})
        del self.headers["content-length"]
        self._answer, self._events = answer, events

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with self._answer, contextlib.suppress(ClientGone, OSError):
            await unless_gone(receive, self._send(send))

    async def _send(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        async with contextlib.aclosing(self._events):
            try:
                async for event in self._events:
                    await send({"type": "http.response.body", "body": event, "more_body": True})
            except OSError:
                raise  # the connection itself is gone
            except Exception as error:
                # The headers are out, so the client reads of it in the stream.
                if not isinstance(error, TandemError):
                    _logger.exception("a stream failed")
                await send({"type": "http.response.body", "body": data(describe(error)[1]), "more_body": True})
        await send({"type": "http.response.body", "body": DONE, "more_body": False})
