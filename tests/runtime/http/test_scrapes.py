"""`/metrics` as a scraper meets it: content type, names, what requests add, and who may read it."""

from __future__ import annotations

import http.client
import json
import time
from contextlib import closing

from starlette.testclient import TestClient

from tandem.errors import TandemError
from tandem.runtime.http.app import build_app
from tests.exposition import read, value
from tests.service import IM_END, PATIENCE, ScriptedWorker, on_loopback, scripted_service

COMPLETIONS = "/v1/completions"


def client_of(worker: ScriptedWorker, **changes: object) -> TestClient:
    return TestClient(build_app(scripted_service(worker, **changes)), raise_server_exceptions=False)


def test_a_page() -> None:
    with client_of(ScriptedWorker([list(b"one "), [*b"two", IM_END]])) as client:
        for stream in (False, True):
            assert client.post(COMPLETIONS, json={"prompt": "hi", "max_tokens": 50, "stream": stream}).text
        assert client.post(COMPLETIONS, json={"prompt": "hi", "max_tokens": 5}).status_code == 200
        response = client.get("/metrics")
    assert response.status_code == 200
    assert response.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    page = response.text
    assert all(name.startswith("tandem:") for name in read(page))
    assert value(page, "tandem:prompt_tokens_total") == 6
    assert value(page, "tandem:generation_tokens_total") == 8 + 8 + 5
    assert value(page, "tandem:request_success_total", finished_reason="stop") == 2
    assert value(page, "tandem:request_success_total", finished_reason="length") == 1
    assert value(page, "tandem:request_success_total", finished_reason="abort") == 0
    assert value(page, "tandem:request_generation_tokens_bucket", le="5.0") == 1
    assert value(page, "tandem:request_generation_tokens_bucket", le="10.0") == 3


def test_every_sample_names_the_model_whatever_it_is_called() -> None:
    name = 'a "model"\\n é,}\n2'
    with client_of(ScriptedWorker(), model=name) as client:
        families = read(client.get("/metrics").text).values()
    assert all(("model_name", name) in pairs for family in families for _, pairs in family.samples)


def test_a_request_refused_or_gone_wrong() -> None:
    worker = ScriptedWorker([list(b"one")], error=TandemError("a pass failed"), full=True)
    with client_of(worker) as client:
        assert client.post(COMPLETIONS, json={"prompt": "hi"}).status_code == 429
        worker.full = False
        assert client.post(COMPLETIONS, json={"prompt": "hi"}).status_code == 500
        page = client.get("/metrics").text
    assert value(page, "tandem:request_success_total", finished_reason="error") == 1
    assert value(page, "tandem:e2e_request_latency_seconds_count") == 0


def test_an_engine_out_of_service_can_still_be_read() -> None:
    with client_of(ScriptedWorker(healthy=False)) as client:
        assert client.get("/health").status_code == 503
        assert client.get("/metrics").status_code == 200


def test_a_client_that_hangs_up_is_an_abort() -> None:
    """BUG-53: the gauge of requests in flight falls back to 0."""
    worker = ScriptedWorker([list(b"a"), list(b"b")], hold=1)
    with on_loopback(build_app(scripted_service(worker))) as url:
        address = url.removeprefix("http://")
        with closing(http.client.HTTPConnection(address, timeout=PATIENCE)) as connection:
            connection.request("POST", COMPLETIONS, json.dumps({"prompt": "hi"}))
            while not worker.requests:
                time.sleep(1e-3)
            assert value(scraped(address), "tandem:num_requests_running") == 1
        worker.wait_for_ends(1)
        page = scraped(address)
    assert value(page, "tandem:num_requests_running") == 0
    assert value(page, "tandem:request_success_total", finished_reason="abort") == 1


def scraped(address: str) -> str:
    with closing(http.client.HTTPConnection(address, timeout=PATIENCE)) as connection:
        connection.request("GET", "/metrics")
        return connection.getresponse().read().decode()
