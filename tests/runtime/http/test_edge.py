"""Before any body is read: health, models, keys, ids, sizes, unknown paths, draining."""

from __future__ import annotations

import http.client
from collections.abc import Iterator

import pytest
from starlette.testclient import TestClient

from tandem.runtime.http.app import build_app
from tests.service import CONTEXT_LENGTH, PATIENCE, ScriptedWorker, on_loopback, scripted_service


def client_of(worker: ScriptedWorker | None = None, **options: object) -> TestClient:
    app = build_app(scripted_service(worker or ScriptedWorker([[65]])), **options)  # type: ignore[arg-type]
    return TestClient(app, raise_server_exceptions=False)


@pytest.fixture
def client() -> Iterator[TestClient]:
    with client_of() as client:
        yield client


def test_health(client: TestClient) -> None:
    response = client.get("/health")
    assert (response.status_code, response.json()) == (200, {"status": "ok"})


def test_health_of_a_broken_engine() -> None:
    """BUG-53's last part: health never says ready when nothing can be served."""
    with client_of(ScriptedWorker(healthy=False)) as client:
        response = client.get("/health")
    assert (response.status_code, response.json()["error"]["type"]) == (503, "unavailable_error")


def test_models(client: TestClient) -> None:
    model = {
        "id": "tiny",
        "object": "model",
        "owned_by": "tandem",
        "created": 1_700_000_000,
        "max_model_len": CONTEXT_LENGTH,
    }
    assert client.get("/v1/models").json() == {"object": "list", "data": [model]}
    assert client.get("/v1/models/tiny").json() == model


def test_unknown_paths_and_methods(client: TestClient) -> None:
    assert client.get("/v1/nothing").status_code == 404
    assert client.get("/v1/nothing").json()["error"] == {
        "message": "Not Found: GET /v1/nothing",
        "type": "invalid_request_error",
        "param": None,
        "code": None,
    }
    response = client.get("/v1/completions")
    assert (response.status_code, response.json()["error"]["type"]) == (405, "invalid_request_error")


def test_api_key() -> None:
    with client_of(api_key="s3cret é") as client:
        assert client.get("/health").status_code == 200
        for value in (None, "", "s3cret é", "Bearer wrong", "Basic s3cret é"):
            headers = {} if value is None else {"authorization": value.encode("latin-1")}
            for path in ("/v1/models", "/metrics", "/version", "/nothing"):
                response = client.get(path, headers=headers)
                assert (response.status_code, response.headers["www-authenticate"]) == (401, "Bearer")
                assert response.json()["error"]["code"] == "invalid_api_key"
                assert "s3cret" not in response.text
        assert client.get("/v1/models", headers={"authorization": "Bearer s3cret é".encode()}).status_code == 200


@pytest.mark.parametrize("key", ["à", "x\u2005à", "😀", "k" * 500, "a b"])
def test_any_key_that_is_sent_is_known(key: str) -> None:
    """The last byte of `à` is Latin-1's no-break space."""
    with client_of(api_key=key) as client:
        for value in (f"Bearer {key}", f"bearer  {key} "):
            assert client.get("/v1/models", headers={"authorization": value.encode()}).status_code == 200
        for value in (f"Bearer {key}x", f"Bearer {key[1:]}", f"Bearer {key} {key}"):
            assert client.get("/v1/models", headers={"authorization": value.encode()}).status_code == 401


def test_request_ids(client: TestClient) -> None:
    given = {"x-request-id": "abc-1"}
    assert client.get("/health", headers=given).headers["x-request-id"] == "abc-1"
    assert client.get("/v1/nothing", headers=given).headers["x-request-id"] == "abc-1"
    fresh = {client.get("/health", headers={"x-request-id": "a b"}).headers["x-request-id"] for _ in range(2)}
    assert len(fresh) == 2


def test_a_body_too_long() -> None:
    with client_of(max_body_bytes=64) as client:
        declared = client.post("/v1/completions", json={"prompt": "x" * 100})
        streamed = client.post("/v1/completions", content=iter([b"x" * 40, b"x" * 40]))
        for response in (declared, streamed):
            assert (response.status_code, response.json()["error"]["type"]) == (413, "invalid_request_error")
        assert client.post("/v1/completions", json={"prompt": "x"}).status_code == 200


def test_draining() -> None:
    app = build_app(scripted_service(ScriptedWorker([[65]])))
    with TestClient(app) as client:
        app.draining = True
        for response in (client.get("/health"), client.post("/v1/completions", json={"prompt": "x"})):
            assert (response.status_code, response.json()["error"]["type"]) == (503, "unavailable_error")


class Broken(ScriptedWorker):
    def submit(self, request: object, sink: object) -> None:  # type: ignore[override]
        raise RuntimeError("secret place")


@pytest.mark.parametrize(
    "origin", ["http://evil.example", "null", "http://testserver.evil.example", "https://testserver:1"]
)
def test_pages_of_other_origins_need_a_key(client: TestClient, origin: str) -> None:
    """Without one, any page that is open in a browser could use a server on loopback."""
    words = {"json": {"prompt": "x"}, "headers": {"origin": origin}}
    response = client.post("/v1/completions", **words)  # type: ignore[arg-type]
    assert (response.status_code, response.json()["error"]["type"]) == (403, "invalid_request_error")
    with client_of(api_key="k") as keyed:
        words["headers"]["authorization"] = "Bearer k"
        assert keyed.post("/v1/completions", **words).status_code == 200  # type: ignore[arg-type]


def test_a_page_of_its_own_needs_none(client: TestClient) -> None:
    own = {"origin": "http://testserver"}
    assert client.post("/v1/completions", json={"prompt": "x"}, headers=own).status_code == 200


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("localhost:1", 200),
        ("app.localhost", 200),
        ("127.0.0.1:8000", 200),
        ("[::1]:8000", 200),
        ("evil.example:8000", 403),
        ("localhost.evil.example", 403),
        ("notlocalhost", 403),
        ("127.0.0.1.evil.example", 403),
        ("[::1", 403),
    ],
)
def test_names_that_a_resolver_gave_to_loopback_need_a_key(host: str, status: int) -> None:
    """DNS rebinding: a page of another host whose name now leads here has the origin that it asks."""
    headers = {"host": host, "origin": f"http://{host}", "content-type": "application/json"}
    with on_loopback(build_app(scripted_service(ScriptedWorker([[65]])))) as url:
        connection = http.client.HTTPConnection(url.removeprefix("http://"), timeout=PATIENCE)
        connection.request("POST", "/v1/completions", '{"prompt": "x"}', headers)
        assert connection.getresponse().status == status
        connection.close()


def test_a_connection_outlives_a_bug(caplog: pytest.LogCaptureFixture) -> None:
    """uvicorn would close it behind the answer, and a client's next request would go nowhere."""
    with on_loopback(build_app(scripted_service(Broken()))) as url:
        connection = http.client.HTTPConnection(url.removeprefix("http://"), timeout=PATIENCE)
        connection.auto_open = False
        connection.connect()
        for _ in range(3):
            connection.request("POST", "/v1/completions", '{"prompt": "x"}')
            response = connection.getresponse()
            assert (response.status, response.getheader("connection")) == (500, None)
            response.read()
        connection.close()
    assert sum(record.exc_info is not None for record in caplog.records) == 3


def test_a_bug_is_a_500_that_tells_nothing() -> None:
    with client_of(Broken()) as client:
        response = client.post("/v1/completions", json={"prompt": "x"})
    assert response.status_code == 500
    assert "secret" not in response.text and response.headers["x-request-id"]
