"""The server as a process: the line it prints, signals, draining and exit codes."""

from __future__ import annotations

import http.client
import json
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager

import pytest

from tandem.runtime.serve import bind
from tests.children import environment
from tests.service import PATIENCE

SERVER = """
from tandem.runtime.serve import bind, serve
from tests.service import ScriptedWorker, scripted_service
worker = ScriptedWorker({rounds}, endless=True)
with bind("127.0.0.1", 0) as bound:
    serve(scripted_service(worker, context_length={context}), bound)
print("ends:", *worker.ends)
"""


@contextmanager
def server(context: int) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A process that answers with one byte a millisecond, up to the end of its context; yields it and host:port."""
    code = SERVER.format(rounds=[[65]], context=context)
    words = [sys.executable, "-c", code]
    process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment())
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line.startswith("listening on http://127.0.0.1:"), line
        yield process, line.split("//")[1].strip()
    finally:
        if process.poll() is None:
            process.kill()
        process.communicate()


@contextmanager
def begun(address: str, max_tokens: int) -> Iterator[http.client.HTTPResponse]:
    """A stream whose first chunk has come."""
    with closing(http.client.HTTPConnection(address, timeout=PATIENCE)) as connection:
        body = json.dumps({"prompt": "x", "max_tokens": max_tokens, "stream": True})
        connection.request("POST", "/v1/completions", body)
        response = connection.getresponse()
        assert response.status == 200
        response.readline()
        yield response


def health(address: str) -> int:
    with closing(http.client.HTTPConnection(address, timeout=PATIENCE)) as connection:
        connection.request("GET", "/health")
        return connection.getresponse().status


@pytest.mark.parametrize("sign", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_drains(sign: signal.Signals) -> None:
    """What was begun is answered, /health says 503 meanwhile, and the process exits with 0."""
    with server(context=10_000) as (process, address), begun(address, 1000) as response:
        process.send_signal(sign)
        until = time.monotonic() + PATIENCE
        while health(address) == 200 and time.monotonic() < until:
            time.sleep(0.01)
        assert health(address) == 503
        lines = response.read().decode().strip().split("\n\n")
        assert lines[-1] == "data: [DONE]"
        assert json.loads(lines[-2].removeprefix("data: "))["choices"][0]["finish_reason"] == "length"
        out, err = process.communicate(timeout=PATIENCE)
        assert (process.returncode, out.strip(), err) == (0, "ends: length", "")


def test_a_second_signal_cuts_off() -> None:
    with server(context=10_000_000) as (process, address), begun(address, 9_000_000) as response:
        process.send_signal(signal.SIGTERM)
        while health(address) == 200:
            time.sleep(0.01)
        process.send_signal(signal.SIGTERM)
        tail = response.read().decode().strip().split("\n\n")
        assert json.loads(tail[-2].removeprefix("data: "))["error"]["type"] == "unavailable_error"
        process.communicate(timeout=PATIENCE)
        assert process.returncode == 0


def test_an_idle_server_stops_at_once() -> None:
    with server(context=200) as (process, _):
        process.send_signal(signal.SIGTERM)
        out, err = process.communicate(timeout=PATIENCE)
        assert (process.returncode, out.strip(), err) == (0, "ends:", "")


def test_small_pieces_are_sent_at_once() -> None:
    """asyncio sets TCP_NODELAY only where the socket it listens on names its protocol; else an event may wait 40 ms."""
    with bind("127.0.0.1", 0) as bound:
        assert bound.proto == socket.IPPROTO_TCP


def test_an_upgrade_is_a_plain_request() -> None:
    """Also where a library for WebSockets is installed: they would be let in without a key."""
    upgrade = {
        "connection": "upgrade",
        "upgrade": "websocket",
        "sec-websocket-version": "13",
        "sec-websocket-key": "eA==",
    }
    with server(context=200) as (_, address), closing(http.client.HTTPConnection(address, timeout=PATIENCE)) as client:
        client.request("GET", "/v1/models", headers=upgrade)
        response = client.getresponse()
        assert (response.status, json.load(response)["object"]) == (200, "list")
