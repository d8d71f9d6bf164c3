"""The OpenAPI description: sound in itself, true of every route, field and status, and of what is really answered."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest
from jsonschema import Draft202012Validator
from starlette.testclient import TestClient

from tandem import __version__
from tandem.runtime.http.app import build_app
from tandem.runtime.http.fields import NEUTRAL, WITHOUT_EFFECT
from tandem.runtime.http.schema import ChatBody, CompletionBody
from tandem.runtime.http.tokens import DetokenizeBody, TokenizeBody
from tests.runtime.http.test_docs import cells
from tests.service import IM_END, ScriptedWorker, scripted_service

KEY = {"authorization": "Bearer key"}
BODIES = {
    "/v1/chat/completions": ChatBody,
    "/v1/completions": CompletionBody,
    "/tokenize": TokenizeBody,
    "/detokenize": DetokenizeBody,
}
ASKED: dict[str, Any] = {
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "hi"}], "logprobs": True, "top_logprobs": 2},
    "/v1/completions": {"prompt": "hi", "logprobs": 2},
    "/tokenize": {"prompt": "hi", "return_token_strs": True},
    "/detokenize": {"tokens": [65]},
}


def client(**options: Any) -> TestClient:
    worker = ScriptedWorker([list(b"one"), [*b" two", IM_END]])
    return TestClient(build_app(scripted_service(worker), **options), raise_server_exceptions=False)


@pytest.fixture(scope="module")
def description() -> Any:
    return client(api_key="key").get("/openapi.json", headers=KEY).json()


def operations(description: Any) -> Iterator[tuple[str, str, Any]]:
    for path, item in description["paths"].items():
        for method, operation in item.items():
            yield method.upper(), path, operation


def found(description: Any, thing: Any) -> Any:
    """`thing`, or what it refers to."""
    while "$ref" in thing:
        at, *names = thing["$ref"].split("/")
        assert at == "#"
        thing = description
        for name in names:
            thing = thing[name]
    return thing


def check(description: Any, schema: Any, value: Any) -> None:
    """`value` is as `schema` says, which may refer into the description."""
    Draft202012Validator({"components": description["components"], **schema}).validate(value)


def walk(thing: Any) -> Iterator[dict[str, Any]]:
    if isinstance(thing, dict):
        yield thing
    for part in thing.values() if isinstance(thing, dict) else thing if isinstance(thing, list) else ():
        yield from walk(part)


def test_it_is_openapi(description: Any) -> None:
    """What OpenAPI 3.1.0 asks for; bench/clients/schemathesis.sh holds it against the standard's own schema."""
    assert description["openapi"] == "3.1.0" and set(description) == {"openapi", "info", "paths", "components"}
    assert description["info"]["title"] and description["info"]["version"] == __version__
    for thing in walk(description):
        if "$ref" in thing:
            assert found(description, thing) and set(thing) == {"$ref"}
        if isinstance(thing.get("schema"), dict):
            Draft202012Validator.check_schema(thing["schema"])
    for schema in description["components"]["schemas"].values():
        Draft202012Validator.check_schema(schema)
    names = []
    for _, path, operation in operations(description):
        names.append(operation["operationId"])
        parameters = {(p["name"], p["in"], p["required"]) for p in operation.get("parameters", [])}
        assert path.startswith("/")
        assert parameters == {(name, "path", True) for name in re.findall(r"{([^}]*)}", path)}
        for status, answer in operation["responses"].items():
            assert re.fullmatch("[1-5][0-9][0-9]", status) and found(description, answer)["description"]
        for asked in operation["security"]:
            assert set(asked) <= set(description["components"]["securitySchemes"])
    assert len(names) == len(set(names))


def test_it_names_every_route(description: Any) -> None:
    written = re.findall(r"`(GET|POST) (/\S*)`", " ".join(line for [line, *_] in cells("endpoint")))
    told = [(method, path.replace("{name}", "{id}")) for method, path, _ in operations(description)]
    assert sorted(told) == sorted(written)


@pytest.mark.parametrize("path", BODIES)
def test_it_names_every_field(description: Any, path: str) -> None:
    content = description["paths"][path]["post"]["requestBody"]["content"]
    fields = found(description, content["application/json"]["schema"])["properties"]
    honoured = set(BODIES[path].__struct_fields__)
    assert set(fields) == honoured | set(NEUTRAL) | WITHOUT_EFFECT
    for name in set(NEUTRAL) - honoured:
        assert fields[name]["enum"] == [None, *NEUTRAL[name]]
    for name in WITHOUT_EFFECT - honoured:
        assert set(fields[name]) == {"description"}


@pytest.mark.parametrize("body", [{}, {"prompt": None}, {"prompt": "x", "messages": []}, {"prompt": "x"}])
def test_prompt_or_messages(description: Any, body: Any) -> None:
    taken = client().post("/tokenize", json=body).status_code == 200
    schema = {"components": description["components"], "$ref": "#/components/schemas/TokenizeBody"}
    assert Draft202012Validator(schema).is_valid(body) is taken


def test_it_names_every_status(description: Any) -> None:
    listed = {int(status) for [statuses, _] in cells("status") for status in statuses.split(",")}
    told = {status for *_, operation in operations(description) for status in map(int, operation["responses"])}
    assert told - {200, 204} == listed


def test_an_error_of_each_kind_is_described(description: Any) -> None:
    """Statuses as the server gives them, with the body and the headers that the description promises."""
    busy = client(api_key="key", max_body_bytes=64)
    answers = {
        400: busy.post("/v1/completions", json={"prompt": 1}, headers=KEY),
        401: busy.post("/v1/completions", json={"prompt": "x"}),
        404: busy.post("/v1/completions", json={"prompt": "x", "model": "other"}, headers=KEY),
        405: busy.get("/v1/completions", headers=KEY),
        413: busy.post("/v1/completions", json={"prompt": "x" * 99}, headers=KEY),
    }
    with TestClient(build_app(scripted_service(ScriptedWorker(full=True)))) as full:
        answers[403] = full.post("/v1/completions", json={"prompt": "x"}, headers={"origin": "http://elsewhere"})
        answers[429] = full.post("/v1/completions", json={"prompt": "x"})
        full.app.draining = True  # type: ignore[attr-defined]
        answers[503] = full.post("/v1/completions", json={"prompt": "x"})
    told = description["paths"]["/v1/completions"]["post"]["responses"]
    for status, answer in answers.items():
        assert answer.status_code == status
        response = found(description, told[str(status)])
        assert set(response["headers"]) <= set(answer.headers)
        check(description, response["content"]["application/json"]["schema"], answer.json())


@pytest.mark.parametrize("keyed", [False, True])
def test_who_needs_the_key(keyed: bool) -> None:
    """What the description says of keys is so, of each path; it needs one itself."""
    asked = client(**({"api_key": "key"} if keyed else {}))
    description = asked.get("/openapi.json", headers=KEY).json()
    for method, path, operation in operations(description):
        refused = asked.request(method, path.replace("{name}", "tiny")).status_code == 401
        assert refused is bool(operation["security"]) is ("401" in operation["responses"])
        assert refused is (keyed and path not in ("/", "/favicon.ico", "/health"))


def test_answers_are_as_described(description: Any) -> None:
    asked = client(api_key="key")
    for method, path, operation in operations(description):
        answer = asked.request(method, path.replace("{name}", "tiny"), json=ASKED.get(path), headers=KEY)
        told = operation["responses"][str(answer.status_code)]
        assert answer.status_code < 300 and set(told["headers"]) <= set(answer.headers)
        kind = answer.headers.get("content-type", "").partition(";")[0]
        assert set(told["content"]) - {"text/event-stream"} == ({kind} if kind else set())
        if kind == "application/json":
            check(description, told["content"][kind]["schema"], answer.json())


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions"])
def test_events_are_as_described(description: Any, path: str) -> None:
    body = {**ASKED[path], "stream": True, "stream_options": {"include_usage": True}}
    events = client(api_key="key").post(path, json=body, headers=KEY).text.split("\n\n")
    schema = description["paths"][path]["post"]["responses"]["200"]["content"]["text/event-stream"]["schema"]
    assert events[-2:] == ["data: [DONE]", ""]
    for event in events[:-1]:
        check(description, schema, {"data": event.removeprefix("data: ")})
    inner = schema["properties"]["data"]["anyOf"][1]["contentSchema"]["anyOf"][0]
    for event in events[:-2]:
        check(description, inner, json.loads(event.removeprefix("data: ")))
