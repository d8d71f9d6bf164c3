"""Values of arguments that are written as bare text, typed by the function's schema.

Knows nothing of how they are marked in the text.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping
from typing import Any, NoReturn

Schema = Mapping[str, Any]

ANY = frozenset({"string", "integer", "number", "boolean", "null", "object", "array"})
_INTEGER = re.compile(r"-?(?:0|[1-9]\d*)", re.ASCII)
_WHOLE = re.compile(r"(-?(?:0|[1-9]\d*))\.0*", re.ASCII)
_NUMBER = re.compile(r"-?(?:0|[1-9]\d*)(?:\.\d+)?(?:[eE][+-]?\d+)?", re.ASCII)
_OF_VALUE = {bool: "boolean", int: "integer", float: "number", str: "string", dict: "object", list: "array"}
_MAX_REFERENCES = 16


def types_of(schema: Schema, key: str) -> frozenset[str]:
    """The JSON types that `schema`, one of an object, lets its property `key` have; all where it says nothing."""
    try:
        return _types(schema, property_of(schema, key), {})
    except RecursionError:  # through references, which may be long chains
        return ANY


def property_of(schema: Schema, key: str) -> Schema:
    """What `schema`, one of an object, says of its property `key`; an empty schema where that is nothing."""
    try:
        found = _find(schema, schema, key, set())
    except RecursionError:
        return {}
    return found if isinstance(found, Mapping) else {}


def _find(root: Schema, schema: Any, key: str, seen: set[int]) -> Any:
    """Schemas may refer to each other in circles, so each in `seen` is looked at once."""
    schema = _resolved(root, schema)
    if not isinstance(schema, Mapping) or id(schema) in seen:
        return None
    seen.add(id(schema))
    properties, rest = schema.get("properties"), schema.get("additionalProperties")
    if isinstance(properties, Mapping) and key in properties:
        return _resolved(root, properties[key])
    for branch in _branches(schema):
        if (found := _find(root, branch, key, seen)) is not None:
            return found
    return _resolved(root, rest)


def _types(root: Schema, schema: Any, known: dict[int, frozenset[str]]) -> frozenset[str]:
    """`known` holds what is found, by schema; one that is looked at already says nothing of itself."""
    schema = _resolved(root, schema)
    if not isinstance(schema, Mapping):
        return ANY
    if id(schema) not in known:
        known[id(schema)] = ANY
        known[id(schema)] = _own_types(root, schema, known)
    return known[id(schema)]


def _own_types(root: Schema, schema: Schema, known: dict[int, frozenset[str]]) -> frozenset[str]:
    named = schema.get("type")
    if isinstance(named, str):
        found = frozenset({named})
    elif isinstance(named, list):
        found = frozenset(name for name in named if isinstance(name, str))
    elif "const" in schema or isinstance(schema.get("enum"), list):
        values = [schema["const"]] if "const" in schema else schema["enum"]
        found = frozenset(_OF_VALUE.get(type(value), "null") for value in values)
    elif alternatives := [*_listed(schema, "anyOf"), *_listed(schema, "oneOf")]:
        found = frozenset().union(*(_types(root, one, known) for one in alternatives))
    elif parts := _listed(schema, "allOf"):
        found = ANY.intersection(*(_types(root, one, known) for one in parts))
    else:
        found = ANY
    return (found | {"null"} if schema.get("nullable") is True else found) & ANY or ANY


def _branches(schema: Mapping[str, Any]) -> list[Any]:
    return [one for name in ("anyOf", "oneOf", "allOf") for one in _listed(schema, name)]


def _listed(schema: Mapping[str, Any], name: str) -> list[Any]:
    value = schema.get(name)
    return value if isinstance(value, list) else []


def _resolved(root: Schema, schema: Any) -> Any:
    """`schema`, or what its `$ref` into the same document points at; None where that is nothing."""
    for _ in range(_MAX_REFERENCES):
        if not isinstance(schema, Mapping) or not isinstance(reference := schema.get("$ref"), str):
            return schema
        schema = root if reference.startswith("#") else None
        for step in reference.split("/")[1:]:
            name = step.replace("~1", "/").replace("~0", "~")
            schema = schema.get(name) if isinstance(schema, Mapping) else None
    return None


def typed(text: str, types: frozenset[str]) -> str:
    """`text` as JSON of the first of `types` that it reads as, strictly or nearly; else, or if it is one, a string."""
    word = text.strip()
    for name, read in _READERS:
        if name in types and (found := read(word)) is not None and (name != "null" or _is_null(text, types)):
            return found
    return json.dumps(text, ensure_ascii=False)


def _is_null(text: str, types: frozenset[str]) -> bool:
    """Python's None is a null only where no text may stand."""
    return text.strip() == "null" or "string" not in types


def _null(word: str) -> str | None:
    return "null" if word in ("null", "None") else None


def _boolean(word: str) -> str | None:
    return word.lower() if word.lower() in ("true", "false") else None


def _integer(word: str) -> str | None:
    match = _INTEGER.fullmatch(word) or _WHOLE.fullmatch(word)
    return match.group(match.lastindex or 0) if match else None


def _number(word: str) -> str | None:
    if _NUMBER.fullmatch(word):
        return word
    try:
        value = float(word) if word.isascii() and "_" not in word else math.nan
    except ValueError:
        return None
    return json.dumps(value) if math.isfinite(value) else None


def _holding(kind: type) -> Callable[[str], str | None]:
    def read(word: str) -> str | None:
        if not word.startswith("{" if kind is dict else "["):
            return None
        try:
            if isinstance(json.loads(word, parse_constant=_refuse), kind):
                return word
        except (ValueError, RecursionError):
            pass
        try:  # raw line ends within strings
            value = json.loads(word, strict=False, parse_constant=_refuse)
            return json.dumps(value, ensure_ascii=False)
        except (ValueError, RecursionError):
            return None

    return read


def _refuse(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON")


_READERS: tuple[tuple[str, Callable[[str], str | None]], ...] = (
    ("null", _null),
    ("boolean", _boolean),
    ("integer", _integer),
    ("number", _number),
    ("object", _holding(dict)),
    ("array", _holding(list)),
)
