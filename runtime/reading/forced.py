"""The grammar of an answer that must be calls, in llguidance's dialect of Lark, for each form of calls.

It allows calls as chat templates write them, their arguments as the schemas have them. Imports no llguidance.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from tandem.runtime.reading.formats import Format
from tandem.runtime.reading.thoughts import BEGIN, END
from tandem.runtime.reading.values import Schema, property_of, types_of
from tandem.runtime.reading.xml_call import CALL, END_CALL

SPACING = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
"""llguidance's names for JSON as `json.dumps` spaces it, and so as models have read it."""

_ROOTS = ("$defs", "definitions")
_COMBINED = ("$ref", "anyOf", "oneOf", "allOf", "patternProperties")


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What a grammar must know of the answer beside its tools.

    `thoughts`: whether the prompt has opened a block of them, which the answer then closes first; else it may begin
    with one, unless `thoughts` is None. Markers among `tokens` are added tokens of the vocabulary, which llguidance
    takes for nothing but themselves.
    """

    form: Format
    thoughts: bool | None = None
    tokens: Collection[str] = ()


def forced_calls(tools: Mapping[str, Schema], around: Surroundings, *, several: bool) -> str:
    """One call of `tools`, names to schemas of arguments, or with `several` as many as the model likes."""
    return _grammar(tools, around, several, ["calls"])


def around_content(tools: Mapping[str, Schema], around: Surroundings, *, several: bool) -> str:
    """Content of a form that is called `@form` here, or calls of `tools` instead; empty where there is only content."""
    if not tools and around.thoughts is None:
        return ""
    return _grammar(tools, around, several, ["@form", *(["calls"] if tools else [])])


def _grammar(tools: Mapping[str, Schema], around: Surroundings, several: bool, said: list[str]) -> str:
    grammar = _Grammar(around.form, frozenset(around.tokens))
    start = {None: "said", True: "closed said", False: "(opened closed)? said"}[around.thoughts]
    lines = [f"start: {start}", f"said: {' | '.join(said)}"]
    if tools:
        names = [grammar.call(place, name, schema) for place, (name, schema) in enumerate(tools.items())]
        between = '"; "' if around.form is Format.LLAMA else r'"\n"'
        more = f" ({between} call)*" if several else ""
        lines += [f"calls: call{more}", f"call: {' | '.join(names)}"]
    if around.thoughts is not None:
        grammar.rules.append(f"opened: {grammar.marker(BEGIN)}")
        grammar.until("closed", END, r'"\n"~0..2')
    return "\n".join([*lines, *grammar.rules]) + "\n"


class _Grammar:
    """The rules of calls, as they are needed."""

    def __init__(self, form: Format, tokens: frozenset[str]) -> None:
        self.rules: list[str] = []
        self._form, self._tokens = form, tokens
        self._has_text = False

    def marker(self, text: str) -> str:
        return text if text in self._tokens else _quoted(text)

    def until(self, name: str, marker: str, behind: str) -> None:
        """Adds the rule of any text up to `marker`, and of what is behind it."""
        if marker in self._tokens:
            self.rules.append(f"{name}: /(?s:.*)/ {marker} {behind}")
        else:
            self.rules += [f"{name}_text[suffix={_quoted(marker)}]: /(?s:.*)/", f"{name}: {name}_text {behind}"]

    def call(self, place: int, name: str, schema: Schema) -> str:
        """Adds the rule of one tool's calls; its name."""
        rule = f"call_{place}"
        if self._form is Format.QWEN_XML:
            inner = _joined(_quoted(f"<function={name}>\n"), *self._parameters(schema), _quoted("</function>"))
        else:
            key = "parameters" if self._form is Format.LLAMA else "arguments"
            inner = _joined(_quoted(f'{{"name": {json.dumps(name)}, "{key}": '), _json(_closed(schema)), _quoted("}"))
        if self._form is not Format.LLAMA:
            inner = _joined(self.marker(CALL), r'"\n"', inner, r'"\n"', self.marker(END_CALL))
        self.rules.append(f"{rule}: {inner}")
        return rule

    def _parameters(self, schema: Schema) -> list[str]:
        """Every property in the schema's order, those not required at will."""
        properties, required = schema.get("properties"), schema.get("required")
        names = [*properties] if isinstance(properties, Mapping) else []
        needed = required if isinstance(required, list) else []
        found = []
        for key in names:
            line = _joined(_quoted(f"<parameter={key}>\n"), self._value(schema, key), r'"\n"')
            found.append(line if key in needed else f"({line})?")
        return found

    def _value(self, schema: Schema, key: str) -> str:
        """A value as bare text, its end's tag included."""
        inner, end = property_of(schema, key), _quoted("\n</parameter>")
        fixed = [inner["const"]] if "const" in inner else inner.get("enum")
        if isinstance(fixed, list) and fixed:
            return f"({' | '.join(_quoted(_bare(value)) for value in fixed)}) {end}"
        if "string" in types_of(schema, key):
            if not self._has_text:
                self.rules.append(f"text[suffix={end}]: /(?s:.*)/")
            self._has_text = True
            return "text"
        roots = {name: schema[name] for name in _ROOTS if name in schema}
        return f"{_json({**roots, **inner})} {end}"


def _closed(schema: Schema) -> dict[str, Any]:
    """`schema` as one of an object, which has no other keys than it names, where it names any."""
    closed = {"type": "object", **schema}
    if not any(name in schema for name in (*_COMBINED, "additionalProperties")):
        closed = {"properties": {}, **closed, "additionalProperties": False}
    return closed


def _json(schema: Mapping[str, Any]) -> str:
    return f"%json {json.dumps({**schema, 'x-guidance': SPACING}, ensure_ascii=False)}"


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def _bare(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _joined(*parts: str) -> str:
    return " ".join(parts)
