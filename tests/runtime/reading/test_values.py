"""Bare text typed by a schema: strictly, then leniently, then as the text it is."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tandem.runtime.reading.values import ANY, typed, types_of

SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "integer": {"type": "integer"},
        "number": {"type": "number"},
        "flag": {"type": "boolean"},
        "nothing": {"type": "null"},
        "map": {"type": "object"},
        "list": {"type": "array"},
        "text": {"type": "string"},
        "maybe": {"type": ["string", "null"]},
        "count": {"anyOf": [{"type": "integer"}, {"type": "string"}]},
        "old": {"type": "integer", "nullable": True},
        "enum": {"enum": ["a", "b"]},
        "levels": {"enum": [1, 2, "max"]},
        "point": {"$ref": "#/$defs/point"},
        "loop": {"$ref": "#/properties/loop"},
        "all": {"allOf": [{"type": ["integer", "string"]}, {"type": "integer"}]},
        "open": {},
    },
    "$defs": {"point": {"type": "object"}},
}


@pytest.mark.parametrize(
    ("key", "text", "value"),
    [
        ("integer", "12", 12),
        ("integer", " -3\n", -3),
        ("integer", "3.0", 3),
        ("integer", "3.5", "3.5"),
        ("integer", "007", "007"),
        ("integer", "abc", "abc"),
        ("number", "1.50", 1.5),
        ("number", ".5", 0.5),
        ("number", "1e3", 1000.0),
        ("number", "nan", "nan"),
        ("number", "inf", "inf"),
        ("number", "1_0", "1_0"),
        ("flag", "True", True),
        ("flag", "false", False),
        ("flag", "yes", "yes"),
        ("nothing", "None", None),
        ("map", '{"a": [1, null]}', {"a": [1, None]}),
        ("map", '{"a": "b\nc"}', {"a": "b\nc"}),
        ("map", "[1]", "[1]"),
        ("map", '{"a": NaN}', '{"a": NaN}'),
        ("map", "{'a': 1}", "{'a': 1}"),
        ("list", "[1, 2]", [1, 2]),
        ("list", "1, 2", "1, 2"),
        ("list", "[" * 100_000, "[" * 100_000),
        ("text", "12", "12"),
        ("text", "null", "null"),
        ("text", '"quoted"', '"quoted"'),
        ("maybe", "null", None),
        ("maybe", "None", "None"),
        ("maybe", "nullable", "nullable"),
        ("count", "12", 12),
        ("count", "a dozen", "a dozen"),
        ("old", "null", None),
        ("old", "5", 5),
        ("enum", "a", "a"),
        ("levels", "2", 2),
        ("levels", "max", "max"),
        ("point", "{}", {}),
        ("loop", "5", 5),
        ("all", "5", 5),
        ("open", "5", 5),
        ("open", "five", "five"),
        ("unheard", "[1]", [1]),
    ],
)
def test_values(key: str, text: str, value: Any) -> None:
    found = json.loads(typed(text, types_of(SCHEMA, key)))
    assert found == value and type(found) is type(value)


def test_where_a_property_may_stand() -> None:
    inner = {"properties": {"a": {"type": "integer"}}}
    for schema in ({"anyOf": [{}, inner]}, {"$ref": "#/$defs/x", "$defs": {"x": inner}}, {"allOf": [inner]}):
        assert types_of(schema, "a") == {"integer"}
    assert types_of({"additionalProperties": {"type": "boolean"}}, "a") == {"boolean"}
    assert types_of({"additionalProperties": True}, "a") == ANY


def test_schemas_that_refer_to_each_other_in_circles() -> None:
    """As many ways through them as there are grains of sand; each is looked at once."""
    circle: list[Any] = [{"$ref": "#"}, {"$ref": "#/$defs/x"}, {"$ref": "#/$defs/y"}]
    schema = {"anyOf": circle, "$defs": {"x": {"oneOf": circle, "anyOf": circle}, "y": {"allOf": circle}}}
    assert types_of(schema, "a") == ANY
    within: dict[str, Any] = {"properties": {"a": {"$ref": "#/$defs/x"}}} | schema
    assert types_of(within, "a") == ANY
    chain = {f"n{i}": {"anyOf": [{"$ref": f"#/$defs/n{i + 1}"}]} for i in range(3000)}
    for schema in ({"anyOf": [{"$ref": "#/$defs/n0"}]}, {"properties": {"a": {"$ref": "#/$defs/n0"}}}):
        assert types_of(schema | {"$defs": chain}, "a") == ANY


junk = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.text(max_size=4)
    | st.sampled_from(["string", "#", "#/$defs/x", "#/"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["type", "anyOf", "allOf", "oneOf", "$ref", "properties", "enum", "const", "a", "nullable"])
            | st.just("additionalProperties"),
            inner,
            max_size=4,
        )
    ),
    max_leaves=12,
)


@given(
    st.dictionaries(st.sampled_from(["properties", "anyOf", "$ref", "additionalProperties", "$defs"]), junk), st.text()
)
def test_any_schema_gives_json(schema: Any, text: str) -> None:
    types = types_of(schema, "a")
    assert types and types <= ANY
    json.loads(typed(text, types))
