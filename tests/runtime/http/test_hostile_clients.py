"""Clients that mean no good, over a real socket: half requests, malformed ones, smuggled headers, other origins."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from tandem.runtime.http.app import build_app
from tandem.runtime.http.connection import Connection
from tests.service import PATIENCE, ScriptedWorker, on_loopback, scripted_service

HEAD = b"POST /v1/completions HTTP/1.1\r\nhost: x\r\n"


class Hasty(Connection):
    header_seconds = 0.3


@contextmanager
def served(worker: ScriptedWorker | None = None, **options: Any) -> Iterator[tuple[str, int]]:
    """The app behind connections with little patience."""
    app = build_app(scripted_service(worker or ScriptedWorker([[65]])), **options)
    with on_loopback(app, http=Hasty) as url:
        host, _, port = url.removeprefix("http://").partition(":")
        yield host, int(port)


@pytest.fixture
def address() -> Iterator[tuple[str, int]]:
    with served() as address:
        yield address


def said(address: tuple[str, int], *pieces: bytes, pause: float = 0.0) -> bytes:
    """All that the server says to `pieces`, until it closes."""
    with socket.create_connection(address, timeout=PATIENCE) as client:
        try:
            for piece in pieces:
                client.sendall(piece)
                time.sleep(pause)
            return b"".join(iter(lambda: client.recv(65536), b""))
        except ConnectionError:  # closed while something was still on its way to it
            return b""


def fields(answer: bytes) -> dict[str, str]:
    head = answer.partition(b"\r\n\r\n")[0].decode("latin-1")
    return {name.lower(): value for name, _, value in (line.partition(": ") for line in head.split("\r\n")[1:])}


def status(answer: bytes) -> int:
    return int(answer.split()[1])


def alive(address: tuple[str, int]) -> bool:
    return status(said(address, b"GET /health HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")) == 200


@pytest.mark.parametrize("begun", [b"", b"POST /v1/comp", HEAD, HEAD + b"content-length: 3\r\nx-a: "])
def test_a_head_that_never_ends_is_cut_off(address: tuple[str, int], begun: bytes) -> None:
    start = time.monotonic()
    assert said(address, begun) == b""
    assert 0.2 < time.monotonic() - start < 5 and alive(address)


def test_a_head_that_drips_is_cut_off(address: tuple[str, int]) -> None:
    """A byte now and then buys no time."""
    start = time.monotonic()
    assert said(address, *[b"x" for _ in range(200)], pause=0.05) == b""
    assert time.monotonic() - start < 5


def test_a_second_request_is_watched_as_the_first(address: tuple[str, int]) -> None:
    body = b'{"prompt": "x", "max_tokens": 1}'
    first = HEAD + b"content-length: %d\r\n\r\n" % len(body) + body
    answer = said(address, first, b"GET /hea", pause=0.1)
    assert status(answer) == 200 and answer.count(b"HTTP/1.1 ") == 1


def test_a_body_that_drips_is_cut_off() -> None:
    """A byte before each pause is over buys ten pauses, no more."""
    with served(body_seconds=0.06) as address:
        start = time.monotonic()
        answer = said(address, HEAD + b"content-length: 900\r\n\r\n", *[b" " for _ in range(40)], pause=0.03)
        assert time.monotonic() - start < 5 and (answer == b"" or status(answer) == 408)
        start = time.monotonic()
        answer = said(address, HEAD + b"content-length: 900\r\n\r\n")
        assert (status(answer), fields(answer)["connection"]) == (408, "close")
        assert time.monotonic() - start < 5 and alive(address)


def test_an_answer_longer_than_the_patience_for_a_head() -> None:
    worker, body = ScriptedWorker([[65], [66]], hold=1), b'{"prompt": "x"}'
    with served(worker) as address, socket.create_connection(address, timeout=PATIENCE) as client:
        client.sendall(HEAD + b"connection: close\r\ncontent-length: %d\r\n\r\n" % len(body) + body)
        time.sleep(2 * Hasty.header_seconds)
        worker.release.set()
        answer = b"".join(iter(lambda: client.recv(65536), b""))
    assert json.loads(answer.partition(b"\r\n\r\n")[2])["choices"][0]["text"] == "AB"


MALFORMED = {
    "no method": b" / HTTP/1.1\r\n\r\n",
    "no version": b"GET /health\r\n\r\n",
    "another protocol": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n",
    "bytes": bytes(range(256)) + b"\r\n\r\n",
    "no host": b"GET /health HTTP/1.1\r\n\r\n",
    "a header without a name": b"GET /health HTTP/1.1\r\nhost: x\r\n: y\r\n\r\n",
    "a space before the colon": b"GET /health HTTP/1.1\r\nhost: x\r\ncontent-length : 3\r\n\r\n",
    "a NUL in a header": b"GET /health HTTP/1.1\r\nhost: x\r\nx-a: \x00\r\n\r\n",
    "a length below 0": HEAD + b"content-length: -1\r\n\r\n",
    "a length that is none": HEAD + b"content-length: 1_0\r\n\r\n",
    "a length of many digits": HEAD + b"content-length: " + b"9" * 5000 + b"\r\n\r\n",
    "two lengths": HEAD + b"content-length: 2\r\ncontent-length: 3\r\n\r\n{}",
    "an unknown coding": HEAD + b"transfer-encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
    "a chunk that is none": HEAD + b"transfer-encoding: chunked\r\n\r\nzz\r\n{}\r\n",
    "a chunk without end": HEAD + b"transfer-encoding: chunked\r\n\r\n" + b"f" * 4000 + b"\r\n",
    "a head too long": HEAD + b"x-a: " + b"a" * 200_000 + b"\r\n\r\n",
    "a tunnel": b"CONNECT elsewhere:80 HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n",
    "another server's page": b"GET http://elsewhere/health HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n",
    "the server itself": b"OPTIONS * HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n",
    "a path out of the root": b"GET /../../etc/passwd HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n",
    "a path with a NUL": b"GET /v1/models/%00 HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n",
    "too many headers": HEAD + b"x-a: b\r\n" * 20_000 + b"\r\n",
}


@pytest.mark.parametrize("words", MALFORMED.values(), ids=MALFORMED)
def test_malformed_requests_are_refused_at_once(address: tuple[str, int], words: bytes) -> None:
    start = time.monotonic()
    answer = said(address, words)
    assert answer == b"" or 400 <= status(answer) < 500
    assert time.monotonic() - start < 5 and alive(address)


def test_two_ends_of_a_body_are_no_way_around_a_proxy(address: tuple[str, int]) -> None:
    """RFC 9112, 6.3: whoever says both may be smuggling a second request; the connection does not live on."""
    both = HEAD + b"content-length: 5\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n"
    answer = said(address, both + b"GET /version HTTP/1.1\r\nhost: x\r\n\r\n")
    assert (status(answer), fields(answer)["connection"], answer.count(b"HTTP/1.1 ")) == (400, "close", 1)


@pytest.mark.parametrize(
    "given",
    [
        b"a\r\n set-cookie: b",
        b"a\tb",
        b"a b",
        "é".encode(),
        b"a" * 129,
        b"",
        b"a\r\nx-request-id: b",
    ],
)
def test_a_request_id_carries_no_header(address: tuple[str, int], given: bytes) -> None:
    answer = said(
        address, b"GET /health HTTP/1.1\r\nhost: x\r\nconnection: close\r\nx-request-id: " + given + b"\r\n\r\n"
    )
    assert answer.lower().count(b"\r\nx-request-id: ") <= 1 and b"set-cookie" not in answer
    told = fields(answer).get("x-request-id", "a")
    assert told == "a" or (len(told) == 32 and told.isalnum())


def test_other_origins_are_not_told_that_they_may_read() -> None:
    """CORS is off: a browser keeps answers from a page of another origin."""
    origin = {"origin": "https://elsewhere.example"}
    asks = {**origin, "access-control-request-method": "POST", "access-control-request-headers": "content-type"}
    with TestClient(build_app(scripted_service(ScriptedWorker([[65]])))) as client:
        answers = [
            client.options(path, headers=asks) for path in ("/v1/completions", "/v1/chat/completions", "/health")
        ]
        assert [answer.status_code for answer in answers] == [403, 403, 405]
        answers.append(client.post("/v1/completions", json={"prompt": "x"}, headers=origin))
        answers.append(client.get("/v1/models", headers=origin))
    assert [name for answer in answers for name in answer.headers if name.startswith("access-control")] == []


def test_a_schema_fetches_nothing(tmp_path: Path) -> None:
    """A reference to elsewhere is refused, not followed: this server is no way into the network behind it."""
    (tmp_path / "schema.json").write_text("{}")
    app = build_app(scripted_service(ScriptedWorker()))
    with socket.create_server(("127.0.0.1", 0)) as elsewhere, TestClient(app) as client:
        elsewhere.setblocking(False)
        for reference in (f"http://127.0.0.1:{elsewhere.getsockname()[1]}/x", f"file://{tmp_path}/schema.json"):
            answer = client.post("/v1/completions", json={"prompt": "x", "guided_json": {"$ref": reference}})
            assert (answer.status_code, answer.json()["error"]["param"]) == (400, "guided_json")
        with pytest.raises(BlockingIOError):
            elsewhere.accept()
