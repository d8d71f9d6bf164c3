"""`/live`: what it says of an engine, against what the engine did; and what looking costs it."""

from __future__ import annotations

import json
import threading
from typing import Any

import pytest
from starlette.testclient import TestClient

from tandem.keys import Kind
from tandem.prices import PriceModel
from tandem.runtime.chat import ChatTemplate
from tandem.runtime.drafters.scripted import Guess, ScriptedDrafter
from tandem.runtime.engine import Engine
from tandem.runtime.http import live
from tandem.runtime.http.app import build_app
from tandem.runtime.live import Totals
from tandem.runtime.request import Request
from tandem.runtime.worker import Worker
from tests.fake_routers import EvenRouter
from tests.fakes import Recorder, ScriptedExecutor, geometry, plain_text
from tests.service import ScriptedWorker, scripted_service

TABLE = {
    "1024": {"extend": {"1": 20.0, "32": 51.0}, "verify-chain": {"1": 21.0, "32": 52.0}},
    "2048": {"extend": {"1": 30.0}, "verify-tree": {"1": 31.0, "3": 33.0}},
    "4096": {"extend": {"1": 90.0}},
}


def seen(service: Any) -> dict[str, Any]:
    with TestClient(build_app(service)) as client:
        response = client.get("/live")
    assert (response.status_code, response.headers["content-type"]) == (200, "application/json")
    found: dict[str, Any] = response.json()
    return found


def worker_for(prices: PriceModel | None = None, **options: Any) -> Worker:
    executor = ScriptedExecutor(num_pages=40)
    return Worker(Engine(executor, prices=prices or PriceModel(), router=EvenRouter(), **{"drafters": None, **options}))


def test_an_idle_server() -> None:
    found = seen(scripted_service(worker_for(max_lanes=2, max_queue=7), chat=ChatTemplate(None)))
    assert found["model"] == "tiny" and found["fingerprint"].startswith("tandem-")
    assert (found["context_length"], found["chat_template"], found["healthy"]) == (200, False, True)
    assert found["now"] == {
        "busy_lanes": 0, "lanes": 2, "waiting": 0, "places": 7, "reserved_pages": 0, "pages": 40
    }  # fmt: skip
    assert {name for name, count in found["totals"].items() if count} == {"seconds"}
    assert (found["sources"], found["accepted_at"], found["prompt_tokens"]) == ({}, [], 0)


def test_counts_are_what_the_engine_did() -> None:
    """Of 9 tokens one comes out of the prefill, then rounds bring 3, 4 and 1: 5 of 6 drafted ones were right."""
    request = Request((1,), 9)
    answers = {request.prompt: plain_text(request, geometry().vocab_size, geometry().context_length)}
    schedule = (Guess(2, 1), Guess(3))
    engine = Engine(
        ScriptedExecutor(),
        drafters=lambda: ScriptedDrafter(answers, schedule, geometry().vocab_size),
        prices=PriceModel(),
        router=EvenRouter(),
    )
    sink = Recorder()
    engine.submit(request, sink)
    while engine.step():
        pass
    assert [len(block) for block in sink.blocks] == [1, 3, 4, 1]
    found = seen(scripted_service(Worker(engine)))
    totals = found["totals"]
    assert (totals["tokens"], totals["round_tokens"], totals["lane_rounds"]) == (9, 8, 3)
    assert (totals["drafted"], totals["accepted"]) == (6, 5)
    assert list(found["sources"].values()) == [{"drafted": 6, "accepted": 5}]
    assert found["accepted_at"] == [2, 2, 1]
    assert sum(found["rounds"].values()) == 3 and found["rounds"]["plain"] == 1
    assert found["ended"] == {"stop": 0, "length": 1, "timeout": 0, "abort": 0, "error": 0}
    assert sum(found["plain_rounds"].values()) == 1 and found["prompt_tokens"] == 1


def test_how_full_it_is_while_it_works() -> None:
    """Three requests and two lanes. A request's pages are those of its prompt, its answer and a verify behind them."""
    worker = worker_for(max_lanes=2)
    engine = worker._engine
    for _ in range(3):
        engine.submit(Request((1, 2, 3), 20), Recorder())
    engine.step()
    now = seen(scripted_service(worker))["now"]
    each = -(-(3 + 20 + 32) // geometry().page_tokens)
    assert (now["busy_lanes"], now["waiting"], now["reserved_pages"]) == (2, 1, 2 * each)
    while engine.step():
        pass
    now = worker.occupancy()
    assert (now.busy_lanes, now.waiting, now.reserved_pages) == (0, 0, 0)


def test_staircases_are_the_routers_prices() -> None:
    """Classes that no request can reach are left out; a kind the table lacks borrows its kin, as for the router."""
    prices = PriceModel(TABLE)
    prices.observe(10, Kind.EXTEND, 1, 40.0)
    found = seen(scripted_service(worker_for(prices), context_length=1500))["prices"]
    assert [stairs["context_class"] for stairs in found] == [1024, 2048]
    for stairs in found:
        for name, kind in (("plain", Kind.EXTEND), ("chain", Kind.VERIFY_CHAIN), ("tree", Kind.VERIFY_TREE)):
            wanted = [prices.ms(stairs["context_class"], kind, rows) for rows in range(1, 33)]
            assert stairs[name] == pytest.approx(wanted, abs=1e-4)
    assert found[0]["plain"][0] == pytest.approx(22.0)  # a tenth of the way from 20 to 40


def test_a_class_above_every_request_is_shown_if_it_is_the_only_one() -> None:
    service = scripted_service(worker_for(PriceModel({"4096": {"extend": {"1": 9.0}}})), context_length=1024)
    assert [stairs["context_class"] for stairs in seen(service)["prices"]] == [4096]


def test_however_many_ask_the_engine_is_looked_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live, "PERIOD_SECONDS", 60.0)
    looks: list[object] = []
    look = live.look

    def counted(*given: Any) -> live.Live:
        looks.append(given)
        return look(*given)

    monkeypatch.setattr(live, "look", counted)
    with TestClient(build_app(scripted_service(ScriptedWorker()))) as client:
        bodies = {client.get("/live").content for _ in range(20)}
    assert len(bodies) == len(looks) == 1


def test_looking_while_the_engine_learns_breaks_neither() -> None:
    """One thread follows live times in fresh classes, two look: no look fails, and nobody's prices move by looking."""
    prices, alone = PriceModel(TABLE), PriceModel(TABLE)
    service = scripted_service(worker_for(prices), context_length=100_000)
    done, failures = threading.Event(), list[BaseException]()

    def watch() -> None:
        try:
            while not done.is_set():
                json.dumps([stairs.tree for stairs in live.staircases(service)])
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=watch) for _ in range(2)]
    for thread in threads:
        thread.start()
    samples = [(1 << (n % 14), list(Kind)[n % 4], n % 32 + 1, 1.0 + n % 50) for n in range(20_000)]
    for sample in samples:
        prices.observe(*sample)
    done.set()
    for thread in threads:
        thread.join()
    for sample in samples:
        alone.observe(*sample)
    assert failures == []
    for context in (1, 2000, 8000):
        for kind in Kind:
            assert list(prices.per_rows(context, kind)) == list(alone.per_rows(context, kind))


def test_totals_rise() -> None:
    worker = ScriptedWorker([list(b"one")])
    before = Totals.of(worker.meter)
    with TestClient(build_app(scripted_service(worker))) as client:
        client.post("/v1/completions", json={"prompt": "x", "max_tokens": 3})
    after = Totals.of(worker.meter)
    assert after.seconds > before.seconds and (before.tokens, after.tokens) == (0, 3)
