"""The whole server on the real model, as a process: where it listens, who may hang up on it, what it writes down."""

from __future__ import annotations

import http.client
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from tests.bundles import state_home
from tests.children import environment
from tests.exposition import value
from tests.service import PATIENCE

MARK = "velvet heron"
PROBE = {"prompt": "The capital of France is", "max_tokens": 8}
LONG = {"prompt": f"A tale of a {MARK}:", "max_tokens": 1000, "ignore_eos": True}
HANG_UPS = 20


class Server:
    """`tandem-run` on a bundle; `address` is host:port as it says them."""

    def __init__(self, bundle: Path, folder: Path) -> None:
        own = {"XDG_STATE_HOME": str(state_home())}
        words = [sys.executable, "-c", "from tandem.runtime.cli import main; main()", str(bundle), "-v"]
        self.errors = folder / "stderr"
        with self.errors.open("w") as errors:
            self.process = subprocess.Popen(
                [*words, "--port", "0", "--threads", "1"],
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                env={**os.environ, **environment(), **own},
            )
        assert self.process.stdout is not None
        self.address = self.process.stdout.readline().strip().removeprefix("listening on http://")

    def page(self) -> str:
        with closing(http.client.HTTPConnection(self.address, timeout=PATIENCE)) as connection:
            connection.request("GET", "/metrics")
            return connection.getresponse().read().decode()

    def running(self) -> float:
        page = self.page()
        return value(page, "tandem:num_requests_running") + value(page, "tandem:num_requests_waiting")

    def begun(self, body: dict[str, Any]) -> http.client.HTTPConnection:
        connection = http.client.HTTPConnection(self.address, timeout=PATIENCE)
        connection.request("POST", "/v1/completions", json.dumps(body))
        return connection

    def wait_for(self, running: int, seconds: float) -> None:
        until = time.monotonic() + seconds
        while self.running() != running:
            assert time.monotonic() < until, f"not {running} in flight within {seconds:g} s"
            time.sleep(0.01)

    def answer(self, body: dict[str, Any]) -> Any:
        with closing(self.begun(body)) as connection:
            return json.load(connection.getresponse())


@pytest.fixture(scope="module")
def server(smollm2_bundle: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    server = Server(smollm2_bundle, tmp_path_factory.mktemp("served"))
    yield server
    if server.process.poll() is None:
        server.process.kill()
    server.process.communicate()


@pytest.mark.smollm2
def test_it_listens_on_loopback_alone(server: Server) -> None:
    """Without --host."""
    host, _, port = server.address.partition(":")
    assert host == "127.0.0.1"
    listening = [
        line.split()[1] for line in Path("/proc/net/tcp").read_text().splitlines() if f":{int(port):04X} " in line
    ]
    assert f"0100007F:{int(port):04X}" in listening and f"00000000:{int(port):04X}" not in listening


@pytest.mark.smollm2
def test_bug_53_clients_that_hang_up(server: Server) -> None:
    """Not streamed, 20 times: nothing is in flight within 2 s, and the next answer is the first one's, as soon."""
    first = server.answer(PROBE)["choices"]
    took = []
    for _ in range(HANG_UPS):
        connection = server.begun(LONG)
        server.wait_for(1, PATIENCE)
        connection.close()
        server.wait_for(0, 2)
        start = time.monotonic()
        assert server.answer(PROBE)["choices"] == first
        took.append(time.monotonic() - start)
    page = server.page()
    assert value(page, "tandem:request_success_total", finished_reason="abort") == HANG_UPS
    assert value(page, "tandem:request_success_total", finished_reason="length") == HANG_UPS + 1
    assert value(page, "tandem:kv_cache_usage_perc") == 0
    # The work of 20 requests that went on would make each answer slower than the one before.
    assert min(took[-5:]) < 5 * min(took[:5])


@pytest.mark.smollm2
def test_nothing_that_was_said_is_written_down(server: Server) -> None:
    """With --verbose, after answers, hang-ups and refusals."""
    for body in ({**PROBE, "prompt": MARK}, {"prompt": MARK, "n": MARK}, {"prompt": MARK * 5000}, {"messages": MARK}):
        server.answer(body)
    server.process.send_signal(signal.SIGTERM)
    out, _ = server.process.communicate(timeout=PATIENCE)
    said = server.errors.read_text()
    assert (server.process.returncode, out) == (0, "")
    assert "self-check" in said and MARK not in said and "Traceback" not in said
