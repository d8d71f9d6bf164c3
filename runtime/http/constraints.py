"""The form a body asks of its answer, in OpenAI's, vLLM's and llama.cpp's fields: at most one, as a specification.

Knows the fields; how a grammar is compiled and kept is `runtime.grammar`'s work.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any, Literal

from msgspec import Struct

from tandem.errors import RequestError
from tandem.runtime.grammar import specification
from tandem.runtime.grammar.specification import COMPACT, SPACED, Specification
from tandem.runtime.guide import GuideMaker
from tandem.runtime.service import Service

JsonSchema = dict[str, Any] | str
"""An object, or the text of one."""


class NamedSchema(Struct, kw_only=True):
    """OpenAI's `json_schema`. An answer always keeps to it, `strict` or not."""

    name: str | None = None
    description: str | None = None
    schema: dict[str, Any] | None = None
    strict: bool | None = None


class ResponseFormat(Struct, kw_only=True):
    """`schema` is llama.cpp's place for it, with either of the two types that ask for JSON."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: NamedSchema | None = None
    schema: dict[str, Any] | None = None


class StructuredOutputs(Struct, kw_only=True, forbid_unknown_fields=True):
    """vLLM's field of this name: one of the first five, and how white space stands in JSON."""

    json: JsonSchema | None = None
    regex: str | None = None
    choice: list[str] | None = None
    grammar: str | None = None
    json_object: bool | None = None
    whitespace_pattern: str | None = None
    disable_any_whitespace: bool | None = None


class Constraints(Struct, kw_only=True):
    """The fields of a body that ask for a form of the answer."""

    response_format: ResponseFormat | None = None
    structured_outputs: StructuredOutputs | None = None
    guided_json: JsonSchema | None = None
    guided_regex: str | None = None
    guided_choice: list[str] | None = None
    guided_grammar: str | None = None
    guided_whitespace_pattern: str | None = None
    grammar: str | None = None
    json_schema: dict[str, Any] | None = None


Wish = tuple[str, Callable[[], Specification]]
"""A field's path, and what it asks for."""


def constraint_guides(
    service: Service, asked: Constraints, *, ignore_eos: bool, frame: Callable[[], str] = str
) -> list[GuideMaker]:
    """The guide that keeps an answer to the form asked for, if any is. RequestError names the field that is wrong.

    `frame` makes what an answer may hold beside that form, as in `Specification`.
    """
    wishes = list(_wishes(asked))
    if not wishes:
        return []
    param, specified = wishes[0]
    if len(wishes) > 1:
        raise RequestError(f"{param} and {wishes[1][0]} exclude each other; give one of them", param=wishes[1][0])
    if ignore_eos:
        raise RequestError(f"ignore_eos goes against {param}: an answer ends where its form does", param="ignore_eos")
    try:
        wanted = replace(specified(), frame=frame())
    except RequestError as error:
        raise RequestError(f"{param}: {error}", param=param, code="invalid_grammar") from error
    return [service.grammars.compile(wanted, param)]


def _wishes(asked: Constraints) -> Iterator[Wish]:
    if asked.response_format is not None:
        yield from _formatted(asked.response_format)
    if asked.structured_outputs is not None:
        yield from _structured(asked.structured_outputs)
    spacing = _spacing(asked.guided_whitespace_pattern, compact=False)
    _for_json("guided_whitespace_pattern", asked.guided_whitespace_pattern, asked.guided_json)
    yield from _present("guided_json", asked.guided_json, lambda schema: specification.json_schema(schema, spacing))
    yield from _present("guided_regex", asked.guided_regex, specification.regex)
    yield from _present("guided_choice", asked.guided_choice, specification.choice)
    yield from _present("guided_grammar", asked.guided_grammar, specification.grammar)
    yield from _present("grammar", asked.grammar or None, specification.grammar)  # llama.cpp's clients send "" for none
    yield from _present("json_schema", asked.json_schema, specification.json_schema)


def _formatted(wanted: ResponseFormat) -> Iterator[Wish]:
    named, place = wanted.json_schema and wanted.json_schema.schema, "response_format.json_schema.schema"
    schemas = [
        *_present(place, named, specification.json_schema),
        *_present("response_format.schema", wanted.schema, specification.json_schema),
    ]
    yield from schemas
    if wanted.type == "text" and schemas:
        raise RequestError("a schema goes with type json_schema", param="response_format.type")
    if wanted.type == "json_schema" and not schemas:
        raise RequestError("response_format of type json_schema needs a schema", param=place)
    if wanted.type == "json_object" and not schemas:
        yield "response_format", specification.any_object


def _structured(wanted: StructuredOutputs) -> Iterator[Wish]:
    spacing = _spacing(wanted.whitespace_pattern, compact=bool(wanted.disable_any_whitespace))
    whole, form = "structured_outputs", wanted.json if wanted.json is not None else wanted.json_object or None
    _for_json(f"{whole}.whitespace_pattern", wanted.whitespace_pattern, form)
    _for_json(f"{whole}.disable_any_whitespace", wanted.disable_any_whitespace or None, form)
    yield from _present(f"{whole}.json", wanted.json, lambda schema: specification.json_schema(schema, spacing))
    yield from _present(f"{whole}.regex", wanted.regex, specification.regex)
    yield from _present(f"{whole}.choice", wanted.choice, specification.choice)
    yield from _present(f"{whole}.grammar", wanted.grammar, specification.grammar)
    if wanted.json_object:
        yield f"{whole}.json_object", lambda: specification.any_object(spacing)


def _present(param: str, value: Any, specified: Callable[[Any], Specification]) -> Iterator[Wish]:
    if value is not None:
        yield param, lambda: specified(value)


def _for_json(param: str, value: Any, form: Any) -> None:
    if value is not None and form is None:
        raise RequestError(f"{param} is for JSON, and no schema stands beside it; leave it out", param=param)


def _spacing(pattern: str | None, *, compact: bool) -> Mapping[str, Any]:
    """Options of JSON: white space that `pattern` matches wherever some may stand, none, or the usual."""
    if pattern is not None:
        return {"whitespace_pattern": pattern}
    return COMPACT if compact else SPACED
