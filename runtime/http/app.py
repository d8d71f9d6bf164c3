"""The OpenAI-compatible endpoints over a service. `docs/api.md` lists what they honour.

Knows nothing of bundles, engines or sockets.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeVar

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route

from tandem import __version__
from tandem.errors import CapacityError, RequestError, TandemError
from tandem.runtime.http.answer import Answers, ClientGone, unless_gone
from tandem.runtime.http.edge import BODY_SECONDS, HEALTH, ICON, PAGE, Edge, read_limited
from tandem.runtime.http.errors import handle_error, json_response
from tandem.runtime.http.live import Watch
from tandem.runtime.http.logprobs import Wording
from tandem.runtime.http.openapi import description_route
from tandem.runtime.http.order import Order, tally
from tandem.runtime.http.page import Page, no_icon
from tandem.runtime.http.prompts import chat_order, check_model, completion_order
from tandem.runtime.http.replies import Letterhead, Model, ModelList
from tandem.runtime.http.schema import Body, ChatBody, CompletionBody, StreamOptions, read_body
from tandem.runtime.http.stream import PING_SECONDS, EventStream, chunks
from tandem.runtime.http.tokens import detokenize, tokenize
from tandem.runtime.metrics import CONTENT_TYPE, exposition
from tandem.runtime.service import Service
from tandem.runtime.text import TokenBytes

MAX_BODY_BYTES = 16 * 2**20
CLIENT_GONE = 499
"""nginx's status for a client that hung up; nobody reads it but logs."""

AnyBody = TypeVar("AnyBody", CompletionBody, ChatBody)


def build_app(
    service: Service,
    *,
    api_key: str | None = None,
    max_body_bytes: int = MAX_BODY_BYTES,
    ping_seconds: float = PING_SECONDS,
    body_seconds: float = BODY_SECONDS,
) -> Edge:
    """The ASGI app; its `draining` turns new requests away."""
    endpoints = Endpoints(service, max_body_bytes, ping_seconds, body_seconds)
    routes = [
        Route(PAGE, Page(asks_for_key=api_key is not None).show),
        Route(ICON, no_icon),
        Route(HEALTH, endpoints.health),
        Route("/version", endpoints.version),
        Route("/live", endpoints.live),
        Route("/metrics", endpoints.metrics),
        Route("/tokenize", endpoints.tokenize, methods=["POST"]),
        Route("/detokenize", endpoints.detokenize, methods=["POST"]),
        Route("/v1/models", endpoints.models),
        Route("/v1/models/{name:path}", endpoints.model),
        Route("/v1/completions", endpoints.completions, methods=["POST"]),
        Route("/v1/chat/completions", endpoints.chat_completions, methods=["POST"]),
    ]
    routes.append(description_route(routes, keyed=api_key is not None))
    errors = dict.fromkeys((HTTPException, TandemError, Exception), handle_error)
    return Edge(Starlette(routes=routes, exception_handlers=errors), api_key=api_key)


class Endpoints:
    """One method an endpoint; errors leave as exceptions and are worded by `errors`."""

    def __init__(self, service: Service, max_body_bytes: int, ping_seconds: float, body_seconds: float) -> None:
        self._service = service
        self._max_body_bytes = max_body_bytes
        self._ping_seconds = ping_seconds
        self._body_seconds = body_seconds
        self._watch = Watch(service)
        self._token_bytes = TokenBytes(service.tokenizer)
        self._model = Model(service.model, service.created, service.context_length)

    async def health(self, request: Request) -> Response:
        if not self._service.worker.healthy:
            raise CapacityError("the engine is out of service after a failed pass; restart the server", status=503)
        return json_response({"status": "ok"})

    async def models(self, request: Request) -> Response:
        return json_response(ModelList([self._model]))

    async def model(self, request: Request) -> Response:
        check_model(self._service, request.path_params["name"])
        return json_response(self._model)

    async def version(self, request: Request) -> Response:
        return json_response({"version": __version__})

    async def live(self, request: Request) -> Response:
        return Response(self._watch.json(), headers={"cache-control": "no-store"}, media_type="application/json")

    async def metrics(self, request: Request) -> Response:
        page = exposition(self._service.worker.metrics(), {"model_name": self._service.model})
        return Response(page, media_type=CONTENT_TYPE)

    async def tokenize(self, request: Request) -> Response:
        return await self._converted(request, tokenize)

    async def detokenize(self, request: Request) -> Response:
        return await self._converted(request, detokenize)

    async def completions(self, request: Request) -> Response:
        return await self._answer(request, CompletionBody, completion_order)

    async def chat_completions(self, request: Request) -> Response:
        return await self._answer(request, ChatBody, chat_order)

    async def _converted(self, request: Request, convert: Callable[[Service, bytes], object]) -> Response:
        """What `convert` makes of the body; the engine has no part in it."""
        try:
            data = await read_limited(request, self._max_body_bytes, self._body_seconds)
        except ClientDisconnect:
            return Response(status_code=CLIENT_GONE)
        return json_response(await asyncio.to_thread(convert, self._service, data))

    async def _answer(
        self, request: Request, kind: type[AnyBody], order_of: Callable[[Service, AnyBody], Order]
    ) -> Response:
        def read(data: bytes) -> tuple[AnyBody, Order]:
            body = read_body(data, kind)
            return body, order_of(self._service, body)

        try:
            data = await read_limited(request, self._max_body_bytes, self._body_seconds)
            # Off the event loop: a long prompt must not hold up other streams.
            body, order = await asyncio.to_thread(read, data)
            options, letterhead = _stream_options(body), Letterhead(self._service, order.form)
            writers = [order.writer(index, Wording(self._token_bytes)) for index in range(order.num_choices)]
            answers = Answers(self._service, order)
            if body.stream:
                return EventStream(answers, chunks(answers, order, writers, letterhead, options, self._ping_seconds))
            with answers:
                ends = await unless_gone(request.receive, answers.whole())
        except (ClientDisconnect, ClientGone):
            return Response(status_code=CLIENT_GONE)

        def worded() -> Response:
            given = order.given(ends)
            choices = [writer.whole(end) for writer, end in zip(writers, given, strict=True)]
            usage = order.usage(map(tally, ends))
            return json_response(letterhead.whole(choices, usage, writers[0].beside(given[0])))

        # A long prompt's logprobs take a second to word, and other streams go on meanwhile.
        return await asyncio.to_thread(worded) if any(end.prompt for end in ends) else worded()


def _stream_options(body: Body) -> StreamOptions:
    if body.stream_options is not None and not body.stream:
        raise RequestError("stream_options needs stream: true", param="stream_options")
    return body.stream_options or StreamOptions()
