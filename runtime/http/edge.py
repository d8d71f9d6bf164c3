"""What every HTTP request passes first: its id, the API key, and the sign that the server is draining.

Knows nothing of bodies or models.
"""

from __future__ import annotations

import asyncio
import hmac
import logging
import re
import uuid
from contextlib import suppress
from ipaddress import ip_address
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from tandem.errors import CapacityError, RequestError
from tandem.runtime.http.errors import error_response

HEALTH = "/health"
PAGE, ICON = "/", "/favicon.ico"
OPEN = frozenset({HEALTH, PAGE, ICON})
"""Paths that need no key: they tell nothing of what is served."""

BODY_SECONDS = 30.0
"""How long a client may pause while it sends a body."""
MAX_PAUSES = 10
"""A whole body may take this many times as long: a byte now and then must not hold its connection for ever either."""

_logger = logging.getLogger(__name__)
_SANE_ID = re.compile(r"[\x21-\x7e]{1,128}")


class Edge:
    """The outermost ASGI app. Set `draining` to turn new requests away with 503 while those in flight go on."""

    def __init__(self, app: ASGIApp, *, api_key: str | None = None) -> None:
        self.draining = False
        self._app = app
        self._api_key = api_key

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        given = headers.get("x-request-id", "")
        request_id = given if _SANE_ID.fullmatch(given) else uuid.uuid4().hex

        whole = False

        async def send_with_id(message: Message) -> None:
            nonlocal whole
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message)["x-request-id"] = request_id
            await send(message)
            whole = message["type"] == "http.response.body" and not message.get("more_body")

        refusal = self._refusal(scope, headers)
        try:
            await (self._app if refusal is None else error_response(refusal))(scope, receive, send_with_id)
        except Exception:
            if not whole:
                raise
            # uvicorn would close the connection behind the answer, with the client's next request on its way.
            _logger.exception("a request failed")

    def _refusal(self, scope: Scope, headers: Headers) -> Exception | None:
        path = scope["path"]
        if "content-length" in headers and "transfer-encoding" in headers:
            # A proxy in front may see another end of the body: what follows it is not to be trusted.
            return HTTPException(
                400, "content-length and transfer-encoding exclude each other", {"connection": "close"}
            )
        if path not in OPEN and self._api_key is None and _foreign(headers, scope.get("server")):
            return RequestError(
                "a page of another origin may not use this server; serve with an API key to allow it", status=403
            )
        if path not in OPEN and self._api_key is not None:
            scheme, _, key = headers.get("authorization", "").partition(" ")
            # Compared as bytes in constant time, so that the answer's delay tells nothing of the key.
            # Only a header's own whitespace goes: bytes of a character may look like Latin-1's.
            given = key.strip(" \t").encode("latin-1")
            if scheme.lower() != "bearer" or not hmac.compare_digest(given, self._api_key.encode()):
                return RequestError(
                    "the API key is missing or wrong; send it as 'Authorization: Bearer KEY'",
                    code="invalid_api_key",
                    status=401,
                )
        if self.draining:
            return CapacityError("the server is shutting down; send the request elsewhere", status=503)
        return None


def _foreign(headers: Headers, server: tuple[str, int | None] | None) -> bool:
    """Whether a browser sends this for a page of another origin: it says so, and would do it for any page.

    `server` is the socket's own address. One that only this machine reaches has no name of its own: a page that calls
    it by one comes from elsewhere, and had the name resolved anew (DNS rebinding).
    """
    origin = headers.get("origin")
    if origin is None:
        return False
    host = headers.get("host", "")
    return origin.partition("://")[2] != host or (_is_loopback(server) and not _names_this_machine(host))


def _is_loopback(server: tuple[str, int | None] | None) -> bool:
    return server is not None and (server[0] == "::1" or server[0].startswith("127."))


def _names_this_machine(host: str) -> bool:
    """Whether a Host header is an address, or a name that no resolver is asked for."""
    with suppress(ValueError):  # of what is neither
        name = urlsplit(f"//{host}").hostname or ""
        if name == "localhost" or name.endswith(".localhost"):
            return True
        ip_address(name)
        return True
    return False


async def read_limited(request: Request, max_bytes: int, patience: float = BODY_SECONDS) -> bytes:
    """The request's body. Raises HTTPException 413 as soon as it is known to be longer than `max_bytes`.

    408 when nothing of it came for `patience` seconds, or it took `MAX_PAUSES` times as long: a half-sent body must not
    hold its connection for ever.
    """
    declared = request.headers.get("content-length", "0")
    data = bytearray()
    if not declared.isdecimal() or int(declared) <= max_bytes:
        now = asyncio.get_running_loop().time
        last = now() + MAX_PAUSES * patience
        try:
            async with asyncio.timeout(patience) as wait:
                async for piece in request.stream():
                    wait.reschedule(min(now() + patience, last))
                    data += piece
                    if len(data) > max_bytes:
                        break
                else:
                    return bytes(data)
        except TimeoutError:
            message = f"the body did not come: it may pause {patience:g} seconds and take {MAX_PAUSES * patience:g}"
            raise HTTPException(408, message, {"connection": "close"}) from None
    raise HTTPException(413, f"the body is longer than {max_bytes} bytes")
