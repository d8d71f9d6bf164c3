"""`/metrics` as a scraper meets it: content type, names, what requests add, and who may read it."""

from __future__ import annotations

import http.client
import json
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

from starlette.testclient import TestClient

from tandem.errors import TandemError
from tandem.prices import PriceModel
from tandem.runtime.drafters.lookup import lookup_drafters
from tandem.runtime.engine import Engine
from tandem.runtime.http.app import build_app
from tandem.runtime.worker import Worker
from tests.exposition import read, value
from tests.fakes import ScriptedExecutor
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
            assert value(fetched(address, "GET", "/metrics"), "tandem:num_requests_running") == 1
        worker.wait_for_ends(1)
        page = fetched(address, "GET", "/metrics")
    assert value(page, "tandem:num_requests_running") == 0
    assert value(page, "tandem:request_success_total", finished_reason="abort") == 1


def test_a_real_engine_is_read_while_it_works() -> None:
    """Scrapes between and within rounds: sound pages, counters that never fall, and in the end all that was asked."""
    engine = Engine(ScriptedExecutor(), drafters=lookup_drafters(), prices=PriceModel())
    worker = Worker(engine)
    worker.start()
    service = scripted_service(worker, context_length=engine.context_length, stop_ids=frozenset())
    body = json.dumps({"prompt": [1, 2, 3] * 4, "max_tokens": 50})
    last: dict[object, float] = {}
    try:
        with on_loopback(build_app(service)) as url, ThreadPoolExecutor(8) as pool:
            address = url.removeprefix("http://")
            asked = [pool.submit(fetched, address, "POST", COMPLETIONS, body) for _ in range(24)]
            while not all(one.done() for one in asked):
                families = read(fetched(address, "GET", "/metrics")).values()
                now = {key: n for family in families if family.kind != "gauge" for key, n in family.samples.items()}
                assert last.keys() <= now.keys() and all(now[key] >= n for key, n in last.items())
                last = now
            counts = [json.loads(one.result())["usage"]["completion_tokens"] for one in asked]
            page = fetched(address, "GET", "/metrics")
    finally:
        worker.stop()
    assert counts == [50] * 24
    assert value(page, "tandem:generation_tokens_total") == 24 * 50
    assert value(page, "tandem:request_success_total", finished_reason="length") == 24
    assert value(page, "tandem:num_requests_running") == value(page, "tandem:kv_cache_usage_perc") == 0


def fetched(address: str, method: str, path: str, body: str | None = None) -> str:
    with closing(http.client.HTTPConnection(address, timeout=PATIENCE)) as connection:
        connection.request(method, path, body)
        return connection.getresponse().read().decode()
