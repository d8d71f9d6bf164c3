"""Errors as OpenAI clients read them: a status, and a body with message, type, param and code.

A failure that would repeat itself is a 4xx, for clients retry 429 and everything from 500 up.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import msgspec
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from tandem.errors import CapacityError, RequestError, TandemError

_TYPES = {429: "rate_limit_error", 503: "unavailable_error"}


class ErrorDetail(msgspec.Struct):
    message: str
    type: str
    param: str | None = None
    code: str | None = None


class ErrorBody(msgspec.Struct):
    error: ErrorDetail


def describe(error: Exception) -> tuple[int, ErrorBody, dict[str, str]]:
    """Status, body and headers of any exception; what is not Tandem's own stays unnamed."""
    param = code = None
    headers: dict[str, str] = {}
    message = str(error)
    match error:
        case RequestError():
            status, param, code = error.status, error.param, error.code
        case CapacityError():
            status = error.status
            headers["retry-after"] = str(max(1, math.ceil(error.retry_after_s)))
        case HTTPException():
            status, message = error.status_code, error.detail
            headers |= error.headers or {}
        case TandemError():
            status = 500
        case _:
            status, message = 500, "internal error; the server's log says more"
    kind = _TYPES.get(status, "server_error" if status >= 500 else "invalid_request_error")
    if status == 401:
        headers["www-authenticate"] = "Bearer"
    return status, ErrorBody(ErrorDetail(message, kind, param, code)), headers


def error_response(error: Exception) -> Response:
    status, body, headers = describe(error)
    return json_response(body, status, headers)


def json_response(body: object, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    return Response(msgspec.json.encode(body), status, headers, "application/json")


async def handle_error(request: Request, error: Exception) -> Response:
    """Starlette's exception handler for every kind of error; unknown paths name themselves."""
    if isinstance(error, HTTPException) and error.status_code in (404, 405):
        error = HTTPException(
            error.status_code, f"{error.detail}: {request.method} {request.url.path}", dict(error.headers or {})
        )
    return error_response(error)
