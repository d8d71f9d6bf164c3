"""The fields that ask for a form: each does what its server of origin does, two of them or a wrong one is a 400."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from starlette.testclient import TestClient

from tandem.runtime.http.app import build_app
from tandem.runtime.request import Request
from tests.service import IM_END, ScriptedWorker, byte_tokenizer, scripted_service

COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"], "additionalProperties": False}
GBNF = 'root ::= "yes" | "no"'
GOOD, BAD = '{"a": 1}', '{"a": "1"}'


@pytest.fixture
def worker() -> ScriptedWorker:
    return ScriptedWorker([[IM_END]])


@pytest.fixture
def client(worker: ScriptedWorker) -> Iterator[TestClient]:
    with TestClient(build_app(scripted_service(worker)), raise_server_exceptions=False) as client:
        yield client


def posted(client: TestClient, path: str, body: dict[str, Any]) -> Any:
    prompt: dict[str, Any] = {"messages": [{"role": "user", "content": "hi"}]} if path == CHAT else {"prompt": "hi"}
    return client.post(path, json=prompt | body)


def accepts(request: Request, text: str) -> bool:
    """Whether the text and then the end may be the answer."""
    (make,) = request.guides
    guide = make(request.prompt, request.stop_ids)
    for token in [*byte_tokenizer().encode(text).ids, IM_END]:
        if not guide.keeps(token, []):
            return False
        guide.extend([token])
    return True


@pytest.mark.parametrize("path", [COMPLETIONS, CHAT])
@pytest.mark.parametrize(
    ("body", "good", "bad"),
    [
        ({"response_format": {"type": "json_object"}}, '{"b": [1]}', "[1]"),
        ({"response_format": {"type": "json_object", "schema": SCHEMA}}, GOOD, BAD),
        ({"response_format": {"type": "json_schema", "schema": SCHEMA}}, GOOD, BAD),
        (
            {
                "response_format": {
                    "type": "json_schema",
                    "json_schema": {"name": "x", "description": "y", "strict": True, "schema": SCHEMA},
                }
            },
            GOOD,
            BAD,
        ),
        ({"structured_outputs": {"json": SCHEMA}}, GOOD, BAD),
        ({"structured_outputs": {"json": json.dumps(SCHEMA)}}, GOOD, BAD),
        ({"structured_outputs": {"json": SCHEMA, "disable_any_whitespace": True}}, '{"a":1}', GOOD),
        ({"structured_outputs": {"json": SCHEMA, "whitespace_pattern": " ?"}}, '{ "a" :1}', '{  "a":1}'),
        ({"structured_outputs": {"json_object": True}}, "{}", "1"),
        ({"structured_outputs": {"regex": "[ab]{2}"}}, "ab", "a"),
        ({"structured_outputs": {"choice": ["yes", "no"]}}, "no", "n"),
        ({"structured_outputs": {"grammar": GBNF}}, "yes", "maybe"),
        ({"guided_json": SCHEMA}, GOOD, BAD),
        ({"guided_json": SCHEMA, "guided_whitespace_pattern": " ?"}, '{"a":1}', '{"a":  1}'),
        ({"guided_regex": "[ab]{2}"}, "ab", "abc"),
        ({"guided_choice": ["yes", "no"]}, "yes", ""),
        ({"guided_grammar": 'start: "a"+'}, "aaa", "b"),
        ({"grammar": GBNF}, "no", ""),
        ({"json_schema": SCHEMA}, GOOD, BAD),
    ],
)
def test_each_field(
    client: TestClient, worker: ScriptedWorker, path: str, body: dict[str, Any], good: str, bad: str
) -> None:
    assert posted(client, path, body).status_code == 200
    assert accepts(worker.requests[-1], good) and not accepts(worker.requests[-1], bad)


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"response_format": None, "structured_outputs": None, "guided_json": None, "grammar": None},
        {"response_format": {"type": "text"}},
        {"grammar": ""},
        {"structured_outputs": {}},
        {"structured_outputs": {"disable_any_whitespace": False}},
        {"structured_outputs": {"json_object": False, "regex": None}},
        {"guided_decoding_backend": "xgrammar"},
    ],
)
def test_nothing_asked_for(client: TestClient, worker: ScriptedWorker, body: dict[str, Any]) -> None:
    assert posted(client, CHAT, {**body, "ignore_eos": True}).status_code == 200
    assert worker.requests[-1].guides == ()


@pytest.mark.parametrize(
    ("body", "param", "says"),
    [
        ({"guided_regex": "a", "guided_json": SCHEMA}, "guided_regex", "guided_json and guided_regex exclude"),
        (
            {"response_format": {"type": "json_object"}, "structured_outputs": {"regex": "a"}},
            "structured_outputs.regex",
            "exclude each other",
        ),
        ({"structured_outputs": {"regex": "a", "choice": ["a"]}}, "structured_outputs.choice", "exclude each other"),
        ({"guided_regex": "a", "ignore_eos": True}, "ignore_eos", "goes against guided_regex"),
        ({"guided_regex": "("}, "guided_regex", "the regular expression cannot be compiled"),
        ({"guided_grammar": "start: x"}, "guided_grammar", 'unknown name: "x"'),
        ({"grammar": "nonsense"}, "grammar", "cannot be compiled"),
        ({"guided_choice": []}, "guided_choice", "nothing to choose"),
        ({"guided_json": "{"}, "guided_json", "the JSON schema cannot be compiled"),
        ({"guided_json": {"type": "integer", "minimum": 2, "maximum": 1}}, "guided_json", "nsatisfiable"),
        ({"json_schema": {"$ref": "#/$defs/x"}}, "json_schema", "does not exist"),
        ({"guided_regex": "a" * 70000}, "guided_regex", "at most 65536"),
        ({"response_format": {"type": "json_schema"}}, "response_format.json_schema.schema", "needs a schema"),
        ({"response_format": {"type": "text", "schema": SCHEMA}}, "response_format.type", "json_schema"),
        ({"response_format": {"type": "xml"}}, "response_format.type", "invalid enum value"),
        ({"response_format": {"type": "json_schema", "json_schema": {"schema": 1}}}, None, "expected"),
        ({"guided_regex": "a", "guided_whitespace_pattern": " "}, "guided_whitespace_pattern", "is for JSON"),
        (
            {"structured_outputs": {"regex": "a", "disable_any_whitespace": True}},
            "structured_outputs.disable_any_whitespace",
            "is for JSON",
        ),
        ({"structured_outputs": {"structural_tag": "x"}}, "structured_outputs", "unknown field"),
        ({"structured_outputs": {"choice": [1]}}, "structured_outputs.choice[0]", "expected `str`"),
    ],
)
@pytest.mark.parametrize("path", [COMPLETIONS, CHAT])
def test_refusals_name_the_field(
    client: TestClient, worker: ScriptedWorker, path: str, body: dict[str, Any], param: str | None, says: str
) -> None:
    response = posted(client, path, body)
    error = response.json()["error"]
    assert response.status_code == 400 and error["type"] == "invalid_request_error"
    assert says in error["message"] and (param is None or error["param"] == param)
    assert not worker.requests


def test_a_missing_extra_and_a_model_without_an_end(worker: ScriptedWorker, monkeypatch: pytest.MonkeyPatch) -> None:
    from tandem.runtime.grammar.compiler import Grammars

    endless = scripted_service(worker, grammars=Grammars(byte_tokenizer(), 258, ()))
    with TestClient(build_app(endless)) as client:
        error = posted(client, CHAT, {"response_format": {"type": "json_object"}}).json()["error"]
        assert error["param"] == "response_format" and "no end token" in error["message"]
    monkeypatch.setitem(sys.modules, "llguidance", None)
    with TestClient(build_app(scripted_service(worker))) as client:
        response = posted(client, CHAT, {"response_format": {"type": "json_object"}})
        assert response.status_code == 400 and "pip install 'tandem-llm[structured]'" in response.text
        assert posted(client, CHAT, {}).status_code == 200
