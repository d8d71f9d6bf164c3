"""The engine behind its thread: submits and cancels from outside, drains, stops, failures."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from tandem.errors import CapacityError, DeviceError, RequestError, TandemError
from tandem.runtime import worker as module
from tandem.runtime.engine import Engine
from tandem.runtime.request import FinishReason, LaneStats, Request
from tandem.runtime.worker import Worker
from tests.fake_routers import EvenRouter, FreePrices
from tests.fakes import Recorder, ScriptedExecutor, geometry, plain_text

WAIT = 30.0


class Awaited(Recorder):
    """A recorder that another thread can wait for."""

    def __init__(self) -> None:
        super().__init__()
        self.begun, self.done = threading.Event(), threading.Event()

    def tokens(self, ids: list[int]) -> bool:
        self.begun.set()
        return super().tokens(ids)

    def finished(self, reason: FinishReason, stats: LaneStats, error: TandemError | None) -> None:
        super().finished(reason, stats, error)
        self.done.set()


class Gated(ScriptedExecutor):
    """Passes wait for `gate`, so that a test can act in the middle of one."""

    def __init__(self) -> None:
        super().__init__()
        self.gate, self.entered = threading.Event(), threading.Event()

    def run(self, kind, rows):  # type: ignore[no-untyped-def]
        self.entered.set()
        assert self.gate.wait(WAIT)
        return super().run(kind, rows)


def worker_for(executor: ScriptedExecutor, **options: int) -> Worker:
    return Worker(Engine(executor, drafters=None, prices=FreePrices(), router=EvenRouter(), **options))


@pytest.fixture
def executor() -> ScriptedExecutor:
    return ScriptedExecutor()


@pytest.fixture
def worker(executor: ScriptedExecutor) -> Iterator[Worker]:
    worker = worker_for(executor)
    worker.start()
    yield worker
    worker.stop()


def test_many_threads_are_served_their_own_answers(worker: Worker) -> None:
    requests = [Request((i, i + 1), 10) for i in range(12)]
    sinks = [Awaited() for _ in requests]
    threads = [threading.Thread(target=worker.submit, args=pair) for pair in zip(requests, sinks, strict=True)]
    for thread in threads:
        thread.start()
    g = geometry()
    for request, sink in zip(requests, sinks, strict=True):
        assert sink.done.wait(WAIT)
        assert sink.ids == plain_text(request, g.vocab_size, g.context_length)
    assert worker.drain(WAIT)
    assert (worker.num_running, worker.num_waiting) == (0, 0)


def test_a_wrong_request_is_refused_in_the_callers_thread(worker: Worker) -> None:
    with pytest.raises(RequestError):
        worker.submit(Request((), 5), Recorder())


def test_several_requests_are_queued_together_or_not_at_all() -> None:
    executor = Gated()
    worker = worker_for(executor, max_lanes=2, max_queue=3)
    sinks = [Awaited() for _ in range(6)]
    pairs = [(Request((i, 1), 4), sink) for i, sink in enumerate(sinks)]
    with pytest.raises(RequestError, match="6 answers") as caught:
        worker.submit_all(pairs)
    assert caught.value.code == "too_many_choices"
    with pytest.raises(RequestError, match="empty"):
        worker.submit_all([*pairs[:2], (Request((), 4), sinks[2])])
    worker.submit_all(pairs[:3])
    with pytest.raises(CapacityError, match="3 requests are waiting"):
        worker.submit_all(pairs[3:])
    assert worker.num_waiting == 3
    worker.submit_all(pairs[3:5])
    executor.gate.set()
    worker.start()
    assert worker.drain(WAIT)
    g = geometry()
    for (request, sink), served in zip(pairs, [True] * 5 + [False], strict=True):
        assert sink.ids == (plain_text(request, g.vocab_size, g.context_length) if served else [])
    worker.stop()


def test_bug_53_a_cancel_frees_the_lane_within_a_round() -> None:
    executor = Gated()
    worker = worker_for(executor)
    worker.start()
    sink = Awaited()
    ticket = worker.submit(Request((1, 2), 80), sink)
    assert executor.entered.wait(WAIT)
    worker.cancel(ticket)
    executor.gate.set()
    assert sink.done.wait(WAIT) and worker.drain(WAIT)
    assert sink.reason is FinishReason.CANCELLED and len(executor.passes) == 1
    assert worker.num_free_pages == executor.num_pages
    worker.stop()


def test_a_drain_ends_what_is_in_flight_and_takes_no_more() -> None:
    executor = Gated()
    worker = worker_for(executor, max_lanes=1)
    worker.start()
    sinks = [Awaited() for _ in range(3)]
    for sink in sinks:
        worker.submit(Request((1, 2), 5), sink)
    assert not worker.drain(0.01)
    with pytest.raises(CapacityError) as caught:
        worker.submit(Request((1, 2), 5), Awaited())
    assert caught.value.status == 503
    executor.gate.set()
    assert worker.drain(WAIT)
    assert all(sink.reason is FinishReason.LENGTH for sink in sinks)
    worker.stop()
    assert executor.closed


def test_a_stop_cancels_what_is_in_flight() -> None:
    executor = Gated()
    worker = worker_for(executor, max_lanes=1)
    worker.start()
    sinks = [Awaited(), Awaited()]
    for sink in sinks:
        worker.submit(Request((1, 2), 80), sink)
    assert executor.entered.wait(WAIT)
    threading.Timer(0.05, executor.gate.set).start()
    worker.stop()
    worker.stop()
    assert all(sink.reason is FinishReason.CANCELLED for sink in sinks) and executor.closed


def test_a_stop_before_the_start_closes_the_engine(executor: ScriptedExecutor) -> None:
    worker_for(executor).stop()
    assert executor.closed


@pytest.mark.parametrize("started", [True, False])
def test_what_is_to_be_closed_is_closed_once_behind_the_engine(executor: ScriptedExecutor, started: bool) -> None:
    closed: list[bool] = []
    engine = Engine(executor, drafters=None, prices=FreePrices(), router=EvenRouter())
    worker = Worker(engine, [lambda: closed.append(executor.closed)])
    if started:
        worker.start()
    worker.stop()
    assert closed == [True]


def test_a_pass_that_never_ends_holds_up_no_stop(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(module, "STOP_SECONDS", 0.05)
    executor = Gated()
    worker = worker_for(executor)
    worker.start()
    sink = Awaited()
    worker.submit(Request((1, 2), 80), sink)
    assert executor.entered.wait(WAIT)
    worker.stop()
    monkeypatch.setattr(module, "STOP_SECONDS", WAIT)
    worker.stop()  # not waited for again
    assert caplog.messages == ["a pass has not ended in 0.05 s; it is left behind"]
    executor.gate.set()  # it ended after all
    assert sink.done.wait(WAIT) and worker.drain(WAIT)


def test_a_device_that_is_gone_takes_nothing_back(caplog: pytest.LogCaptureFixture) -> None:
    class Lost(ScriptedExecutor):
        def close(self) -> None:
            raise DeviceError("cuMemFree_v2 says 46")

    worker = worker_for(Lost(fail_after=2))
    worker.start()
    sink = Awaited()
    worker.submit(Request((1, 2), 80), sink)
    assert sink.done.wait(WAIT) and worker.drain(WAIT)  # the thread has come to its end
    worker.stop()
    assert sink.reason is FinishReason.ERROR and not worker.healthy
    assert caplog.messages[-1] == "the engine does not close: cuMemFree_v2 says 46"


def test_a_failed_pass_leaves_the_worker_unhealthy() -> None:
    executor = ScriptedExecutor(fail_after=2)
    worker = worker_for(executor)
    worker.start()
    sink = Awaited()
    worker.submit(Request((1, 2), 80), sink)
    assert sink.done.wait(WAIT) and worker.drain(WAIT)
    assert sink.reason is FinishReason.ERROR and not worker.healthy
    with pytest.raises(CapacityError, match="out of service"):
        worker.submit(Request((1, 2), 5), Recorder())
    worker.stop()
    assert executor.closed
