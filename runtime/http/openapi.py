"""The OpenAPI 3.1 description of the endpoints, made of the routes and of the types that bodies are read with.

Knows nothing of services: it is the same whatever is served.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from tandem import __version__
from tandem.runtime.http.edge import OPEN
from tandem.runtime.http.errors import ErrorBody, json_response
from tandem.runtime.http.fields import NEUTRAL, WITHOUT_EFFECT
from tandem.runtime.http.operations import OPERATIONS, STATUSES, Operation

PATH = "/openapi.json"
JSON, EVENTS = "application/json", "text/event-stream"
_PARAMETER = re.compile(r"{(\w+)(?::\w+)?}")

Object = dict[str, Any]


def description_route(routes: Sequence[BaseRoute], *, keyed: bool) -> Route:
    """A route that serves the description of `routes` as they are when it is asked."""

    async def openapi(request: Request) -> Response:
        return json_response(description(routes, keyed=keyed))

    return Route(PATH, openapi)


def description(routes: Sequence[BaseRoute], *, keyed: bool) -> Object:
    """`keyed`: an API key is asked for."""
    served = [(route, OPERATIONS[route.path]) for route in routes if isinstance(route, Route)]
    asked = (kind for _, op in served for kind in (op.answer, op.body, op.event))
    kinds = [*dict.fromkeys(kind for kind in asked if kind is not None and not isinstance(kind, str)), ErrorBody]
    schemas, components = msgspec.json.schema_components(kinds, ref_template="#/components/schemas/{name}")
    schema_of = dict(zip(kinds, schemas, strict=True))
    for _, op in served:
        if op.body is not None:
            _complete(components[op.body.__name__], op.either)
    paths: Object = {}
    for route, op in served:
        path = paths.setdefault(_PARAMETER.sub(r"{\1}", route.path), {})
        for method in sorted(route.methods - {"HEAD"} if route.methods else ()):
            path[method.lower()] = _operation(route, op, schema_of, keyed)
    return {
        "openapi": "3.1.0",
        "info": {"title": "Tandem", "version": __version__, "summary": "OpenAI's protocol over a compiled bundle"},
        "paths": paths,
        "components": {
            "schemas": components,
            "responses": {str(status): _error(status, schema_of[ErrorBody]) for status in STATUSES},
            "headers": {"x-request-id": _header("The request's own id, or one that was made up")},
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
        },
    }


def _complete(schema: Object, either: Sequence[str]) -> None:
    """Adds, beside the fields that a body honours, those accepted for neutral values or without effect."""
    fields = schema["properties"]
    for name, values in NEUTRAL.items():
        says = "Neutral: not supported, any other value is a 400"
        fields.setdefault(name, {"enum": [None, *values], "description": says})
    for name in sorted(WITHOUT_EFFECT):
        fields.setdefault(name, {"description": "Without effect"})
    if either:
        given = {"not": {"type": "null"}}
        schema["oneOf"] = [{"required": [name], "properties": {name: given}} for name in either]


def _operation(route: Route, op: Operation, schema_of: dict[Any, Object], keyed: bool) -> Object:
    content: Object = {op.answer: {"schema": {"type": "string"}}}
    if not isinstance(op.answer, str):
        content = {JSON: {"schema": schema_of[op.answer]}} if op.answer is not None else {}
    if op.event is not None:
        content[EVENTS] = {"schema": _event({"anyOf": [schema_of[op.event], schema_of[ErrorBody]]})}
    headers = {"x-request-id": {"$ref": "#/components/headers/x-request-id"}}
    closed = route.path not in OPEN
    asked = keyed and closed
    errors = sorted({*op.errors, *([401] if asked else []), *([403] if closed else [])})
    told: Object = {
        "operationId": route.name,
        "summary": op.summary,
        "security": [{"key": []}] if asked else [],
        "responses": {
            "200" if content else "204": {"description": "The answer", "headers": headers, "content": content},
            **{str(status): {"$ref": f"#/components/responses/{status}"} for status in errors},
        },
    }
    if names := _PARAMETER.findall(route.path):
        parameter = {"in": "path", "required": True, "schema": {"type": "string"}}
        told["parameters"] = [{"name": name, **parameter} for name in names]
    if op.body is not None:
        told["requestBody"] = {"required": True, "content": {JSON: {"schema": schema_of[op.body]}}}
    return told


def _event(schema: Object) -> Object:
    """One server-sent event: OpenAPI below 3.2 has no word for a stream of them."""
    data = {"type": "string", "contentMediaType": JSON, "contentSchema": schema}
    return {"type": "object", "properties": {"data": {"anyOf": [{"const": "[DONE]"}, data]}}, "required": ["data"]}


def _error(status: int, schema: Object) -> Object:
    headers: Object = {"x-request-id": {"$ref": "#/components/headers/x-request-id"}}
    if status in (429, 503):
        headers["retry-after"] = _header("Seconds to wait", "integer")
    if status == 401:
        headers["www-authenticate"] = _header("The scheme: Bearer")
    if status == 405:
        headers["allow"] = _header("Methods of the path")
    return {"description": STATUSES[status], "headers": headers, "content": {JSON: {"schema": schema}}}


def _header(says: str, kind: str = "string") -> Object:
    return {"description": says, "schema": {"type": kind}}
