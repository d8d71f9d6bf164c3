"""What a chat may call: the tools of its body, checked, and which of them the answer has to use.

Knows nothing of templates or of how calls are written.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tandem.errors import RequestError
from tandem.runtime.http.schema import ChatBody, Tool

MAX_DEPTH = 64
"""Levels of a schema; those who read one, templates and grammars among them, go down by recursion."""


@dataclass(frozen=True, slots=True)
class Offer:
    """`tools` are those the model is shown; `schemas` those it may call now, by name, with their arguments' schemas.

    `is_forced`: the answer is a call of one of them, and with `parallel` maybe several.
    """

    tools: Sequence[Tool]
    schemas: Mapping[str, Mapping[str, Any]]
    is_forced: bool
    parallel: bool


def offer_of(body: ChatBody) -> Offer | None:
    """None where the answer is to call nothing. Raises RequestError for tools or a choice that make no sense."""
    tools, choice = body.tools or [], body.tool_choice or "auto"
    schemas = checked_schemas(tools)
    if not tools and choice not in ("none", "auto"):
        raise RequestError("tool_choice asks for a call and there are no tools; give some", param="tool_choice")
    if not tools or choice == "none":
        return None
    if not isinstance(choice, str):
        name = choice.function.name
        if name not in schemas:
            message = f"tool_choice names {name!r}, which is none of the tools"
            raise RequestError(message, param="tool_choice.function.name", code="invalid_value")
        schemas = {name: schemas[name]}
    return Offer(tools, schemas, choice != "auto", body.parallel_tool_calls is not False)


def checked_schemas(tools: Sequence[Tool]) -> dict[str, Mapping[str, Any]]:
    """Each tool's schema by its name. Raises RequestError for a name that comes twice or a schema of no object."""
    schemas: dict[str, Mapping[str, Any]] = {}
    for place, tool in enumerate(tools):
        function, where = tool.function, f"tools[{place}].function"
        if function.name in schemas:
            raise RequestError(f"two tools are called {function.name!r}", param=f"{where}.name", code="invalid_value")
        schema = function.parameters or {}
        if schema.get("type", "object") != "object":
            message = f'the arguments of {function.name!r} are no object: their schema\'s type must be "object"'
            raise RequestError(message, param=f"{where}.parameters.type", code="invalid_value")
        if _is_deeper(schema, MAX_DEPTH):
            message = f"the schema of {function.name!r} is nested deeper than {MAX_DEPTH} levels"
            raise RequestError(message, param=f"{where}.parameters", code="invalid_value")
        schemas[function.name] = schema
    return schemas


def _is_deeper(value: object, depth: int) -> bool:
    level = [value]
    for _ in range(depth):
        lists = (list(one.values()) if isinstance(one, dict) else one for one in level if isinstance(one, dict | list))
        level = [inner for inner_values in lists for inner in inner_values]
        if not level:
            return False
    return True
