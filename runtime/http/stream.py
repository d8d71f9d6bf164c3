"""Server-sent events: the chunks of all choices as they come, pings while none comes, errors as data.

Knows nothing of engines beyond `Answers`.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncGenerator, Sequence

import msgspec
from msgspec import UNSET, UnsetType
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from tandem.errors import TandemError
from tandem.runtime.http.answer import Answers, ClientGone, unless_gone
from tandem.runtime.http.errors import describe
from tandem.runtime.http.order import Order, Tally, tally
from tandem.runtime.http.replies import Letterhead, Usage
from tandem.runtime.http.schema import StreamOptions
from tandem.runtime.http.writers import ChoiceWriter

PING_SECONDS = 15.0
PING = b": ping\n\n"
DONE = b"data: [DONE]\n\n"
_logger = logging.getLogger(__name__)


def data(body: object) -> bytes:
    return b"data: " + msgspec.json.encode(body) + b"\n\n"


async def chunks(
    answers: Answers,
    order: Order,
    writers: Sequence[ChoiceWriter],
    letterhead: Letterhead,
    options: StreamOptions,
    ping_seconds: float = PING_SECONDS,
) -> AsyncGenerator[bytes, None]:
    """At most one event a round and choice, the finish reason in the choice's last, then the usage if it was asked for.

    `writers` are one for each request of `order`.
    """
    counts: list[Tally] = [(0, None)] * len(writers)

    def usage() -> Usage | UnsetType | None:
        if not options.include_usage:
            return UNSET
        return order.usage(counts) if options.continuous_usage_stats else None

    for writer in writers:
        if (opening := writer.opening()) is not None:
            yield data(letterhead.chunk(opening, usage()))
    while not answers.ended:
        came = await answers.event(ping_seconds)
        if came is None:
            yield PING
            continue
        number, event = came
        counts[number] = tally(event)
        worded = writers[number].piece
        # A long prompt's logprobs take a second to word, and other streams go on meanwhile.
        piece = await asyncio.to_thread(worded, event) if event.prompt else worded(event)
        if piece is not None:
            yield data(letterhead.chunk(piece, usage()))
    if options.include_usage:
        yield data(letterhead.chunk(None, order.usage(counts)))


class EventStream(Response):
    """Sends `events` and then [DONE]. A client that hangs up ends it at once, whatever it waits for."""

    media_type = "text/event-stream"

    def __init__(self, answers: Answers, events: AsyncGenerator[bytes, None]) -> None:
        super().__init__(headers={"cache-control": "no-cache", "x-accel-buffering": "no"})
        del self.headers["content-length"]
        self._answers, self._events = answers, events

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with self._answers, contextlib.suppress(ClientGone, OSError):
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
