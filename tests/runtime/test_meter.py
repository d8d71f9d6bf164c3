"""What an engine counts, against what its sinks and its device saw."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest

from tandem.errors import TandemError
from tandem.keys import Kind
from tandem.prices import PriceModel
from tandem.runtime import meter as clockwork
from tandem.runtime.drafters.scripted import Guess, ScriptedDrafter
from tandem.runtime.engine import Engine
from tandem.runtime.meter import Meter, Plain, Stopwatch
from tandem.runtime.metrics import exposition
from tandem.runtime.request import FinishReason, LaneStats, Request
from tandem.runtime.router.staircut import StairCut
from tandem.runtime.worker import Worker
from tandem.tree import DraftTree
from tests.exposition import read, value
from tests.fake_routers import EvenRouter, FreePrices
from tests.fakes import Recorder, ScriptedExecutor, geometry, plain_text
from tests.runtime.router.replay import flat_table

VOCAB, CONTEXT = geometry().vocab_size, geometry().context_length
SPEC = "tandem:spec_decode_num_"


def engine_for(requests: Sequence[Request], *schedule: Guess, **options: Any) -> Engine:
    answers = {request.prompt: plain_text(request, VOCAB, CONTEXT) for request in requests}
    options = {"router": EvenRouter(), "prices": FreePrices(), **options}
    return Engine(ScriptedExecutor(), drafters=lambda: ScriptedDrafter(answers, schedule, VOCAB), **options)


def serve(engine: Engine, requests: Sequence[Request]) -> list[Recorder]:
    sinks = [Recorder() for _ in requests]
    for request, sink in zip(requests, sinks, strict=True):
        engine.submit(request, sink)
    while engine.step():
        pass
    return sinks


def page_of(engine: Engine) -> str:
    return exposition(Worker(engine).metrics(), {"model_name": "tiny"})


def by_label(page: str, name: str) -> dict[str, float]:
    """Values of a family with one label, zeros left out."""
    family = read(page)[name]
    return {text: n for (_, pairs), n in family.samples.items() for key, text in pairs if key != "model_name" and n}


def test_requests_and_tokens() -> None:
    requests = [Request((1, 2, 3), 9), Request((4,), 1), Request((5, 6), 5), *[Request((7,), 4)] * 3]
    engine = engine_for(requests, Guess(2, 1), Guess())
    sinks = serve(engine, requests)
    page = page_of(engine)
    assert [len(sink.ids) for sink in sinks] == [9, 1, 5, 4, 4, 4]
    assert value(page, "tandem:prompt_tokens_total") == value(page, "tandem:request_prompt_tokens_sum") == 9
    assert value(page, "tandem:generation_tokens_total") == value(page, "tandem:request_generation_tokens_sum") == 27
    assert by_label(page, "tandem:request_success_total") == {"length": 6}
    for name in ("time_to_first_token", "e2e_request_latency", "request_queue_time"):
        assert value(page, f"tandem:{name}_seconds_count") == 6
    assert value(page, "tandem:request_time_per_output_token_seconds_count") == 5, "one token has no second"
    blocks = sum(len(sink.blocks) - 1 for sink in sinks)
    assert value(page, "tandem:inter_token_latency_seconds_count") == blocks


def test_what_verifies_were_priced_at_and_took() -> None:
    """At a price of 1 ms each; rows of a fake pass take 0.1 ms beside 1 for the pass."""
    request = Request((1,), 9)
    engine = engine_for([request], Guess(2, 1), Guess())
    serve(engine, [request])
    passes = [(kind, rows) for kind, rows in engine.executor.passes if kind is not Kind.EXTEND]  # type: ignore[attr-defined]
    page, kinds = page_of(engine), {kind for kind, _ in passes}
    assert kinds
    priced, took = (by_label(page, f"tandem:spec_decode_{name}_seconds_total") for name in ("price", "verify"))
    assert priced == pytest.approx({kind: 1e-3 * sum(own is kind for own, _ in passes) for kind in kinds})
    assert took == pytest.approx(
        {kind: sum(1e-3 + 1e-4 * rows for own, rows in passes if own is kind) for kind in kinds}
    )


def test_drafts_by_position_and_source() -> None:
    """Two right and one wrong, then three right: 5 accepted in 2 drafts of 3."""
    request = Request((1,), 9)
    engine = engine_for([request], Guess(2, 1), Guess(3))
    (sink,) = serve(engine, [request])
    page = page_of(engine)
    # The last of 9 tokens needs no draft: 1 + 3 + 4 + 1.
    assert [len(block) for block in sink.blocks] == [1, 3, 4, 1]
    assert sink.stats is not None
    assert (sink.stats.drafted, sink.stats.accepted) == (6, 5)
    assert value(page, f"{SPEC}drafts_total") == 2
    assert value(page, f"{SPEC}draft_tokens_total") == 6
    assert value(page, f"{SPEC}accepted_tokens_total") == 5
    assert by_label(page, f"{SPEC}accepted_tokens_per_pos_total") == {"0": 2, "1": 2, "2": 1}
    assert by_label(page, f"{SPEC}draft_tokens_per_source_total") == {"scripted": 6}
    assert by_label(page, f"{SPEC}accepted_tokens_per_source_total") == {"scripted": 5}
    assert by_label(page, "tandem:rounds_total") == {"chain": 2, "plain": 1}


def test_rounds_are_the_devices_passes() -> None:
    requests = [Request((i, i + 1), 20) for i in range(6)]
    engine = engine_for(requests, Guess(2, 0, 2), Guess(), Guess(1), Guess(0, 1))
    sinks = serve(engine, requests)
    passes, page = Counter(kind for kind, _ in engine.executor.passes), page_of(engine)  # type: ignore[attr-defined]
    rounds = by_label(page, "tandem:rounds_total")
    assert rounds["chain"] == passes[Kind.VERIFY_CHAIN] > 0
    assert rounds["tree"] == passes[Kind.VERIFY_TREE] > 0
    drafted = value(page, f"{SPEC}draft_tokens_total")
    accepted = value(page, f"{SPEC}accepted_tokens_total")
    assert (
        drafted
        == sum(sink.stats.drafted for sink in sinks if sink.stats)
        == sum(by_label(page, f"{SPEC}draft_tokens_per_source_total").values())
    )
    assert (
        accepted
        == sum(sink.stats.accepted for sink in sinks if sink.stats)
        == sum(by_label(page, f"{SPEC}accepted_tokens_per_pos_total").values())
    )


def test_several_sources_in_one_tree() -> None:
    meter = Meter()
    tree = DraftTree([9, 1, 2, 3, 4], [-1, 0, 1, 1, 0], [1, 0.9, 0.8, 0.1, 0.1], ["root", "a", "b", "a", "b"])
    meter.verified(tree, [0, 1, 2])
    meter.verified(tree, [0])
    assert meter.drafted_by.values == {"a": 4, "b": 4}
    assert meter.accepted_by.values == {"a": 1, "b": 1}
    assert (meter.drafts.value, meter.drafted.value, meter.accepted.value) == (2, 8, 2)
    assert {place: n for place, n in meter.accepted_at.values.items() if n} == {"0": 1, "1": 1}


def test_plain_rounds_without_a_guess() -> None:
    request = Request((1,), 5)
    off = Engine(ScriptedExecutor(), drafters=None, prices=FreePrices(), router=EvenRouter())
    serve(off, [request])
    assert by_label(page_of(off), "tandem:plain_rounds_total") == {"off": 4}
    mute = engine_for([request], Guess())
    serve(mute, [request])
    assert by_label(page_of(mute), "tandem:plain_rounds_total") == {"no_guess": 4}


def test_plain_rounds_of_the_router() -> None:
    """Dear verifies are declined at their price; cheap ones once they have cost more than they should have."""
    request = Request((1,), 8)
    dear = {"1024": {"extend": {"1": 1.0}, "verify-chain": {"2": 100.0}, "verify-tree": {"2": 100.0}}}
    engine = engine_for([request], Guess(1), router="staircut", prices=PriceModel(dear), learn_cost=False)
    serve(engine, [request])
    # The last token of 8 needs no draft.
    assert by_label(page_of(engine), "tandem:plain_rounds_total") == {"price": 6, "no_guess": 1}

    heard: list[Plain] = []
    router = StairCut(PriceModel(flat_table()), declined=heard.append)
    for _ in range(50):
        drafted = router.choose([[DraftTree.chain(1, [2], [0.9], "local")]], [100], 32)
        router.settle([[3]], 50.0 if drafted else 1.0)
    assert set(heard) == {Plain.MEASURED}


def test_gauges_follow_the_engine() -> None:
    requests = [Request((1,) * 9, 20)] * 6
    engine = engine_for(requests)
    before = page_of(engine)
    assert [value(before, f"tandem:num_requests_{state}") for state in ("running", "waiting")] == [0, 0]
    assert value(before, "tandem:kv_cache_usage_perc") == 0
    for request in requests:
        engine.submit(request, Recorder())
    engine.step()
    during = page_of(engine)
    assert [value(during, f"tandem:num_requests_{state}") for state in ("running", "waiting")] == [4, 2]
    # 4 lanes of 9 + 20 tokens and 32 places for a verify, in pages of 8.
    assert value(during, "tandem:kv_cache_usage_perc") == pytest.approx(4 * 8 / engine.executor.num_pages)
    while engine.step():
        pass
    after = page_of(engine)
    assert value(after, "tandem:kv_cache_usage_perc") == 0


def test_other_ends() -> None:
    """vLLM's words; what has no whole answer is counted and not timed."""
    requests = [Request((1,), 50), Request((2,), 50), Request((3,), 50)]
    engine = engine_for(requests, max_lanes=1)
    tickets = [engine.submit(request, Recorder(wants=3 if request.prompt == (1,) else None)) for request in requests]
    while engine.step():
        if engine.num_waiting == 1:
            engine.cancel(tickets[1])
            engine.cancel(tickets[2])
    page = page_of(engine)
    assert by_label(page, "tandem:request_success_total") == {"stop": 1, "abort": 2}
    assert value(page, "tandem:e2e_request_latency_seconds_count") == 1
    engine.submit(requests[0], Recorder())
    engine.fail(RuntimeError("the device is gone"))
    assert by_label(page_of(engine), "tandem:request_success_total") == {"stop": 1, "abort": 2, "error": 1}


def test_times_of_one_request(monkeypatch: pytest.MonkeyPatch) -> None:
    """Asked at 10, blocks of 2, 3 and 1 tokens at 10.5, 11.5 and 13.0, the end at 13.25."""
    times = iter([10.0, 10.5, 11.5, 13.0, 13.25])
    monkeypatch.setattr(clockwork, "perf_counter", lambda: next(times))
    meter, sink = Meter(), Recorder(wants=6)
    watch = Stopwatch(meter, Request((1, 2), 9), sink)
    assert [watch.tokens(ids) for ids in ([1, 2], [3, 4, 5], [6])] == [False, False, True]
    stats, error = LaneStats(), TandemError("x")
    watch.finished(FinishReason.STOP, stats, error)
    assert (sink.blocks, sink.reason, sink.stats, sink.error) == (
        [[1, 2], [3, 4, 5], [6]],
        FinishReason.STOP,
        stats,
        error,
    )
    page = exposition(meter.families(), {"model_name": "tiny"})
    assert value(page, "tandem:time_to_first_token_seconds_sum") == 0.5
    assert value(page, "tandem:inter_token_latency_seconds_sum") == 2.5
    assert value(page, "tandem:inter_token_latency_seconds_count") == 2
    assert value(page, "tandem:request_time_per_output_token_seconds_sum") == 0.5
    assert value(page, "tandem:e2e_request_latency_seconds_sum") == 3.25


def test_counters_never_go_back() -> None:
    requests = [Request((i, 3), 15) for i in range(8)]
    engine = engine_for(requests, Guess(2, 1), Guess(), max_lanes=2)
    for request in requests:
        engine.submit(request, Recorder())
    last: dict[object, float] = {}
    while engine.step():
        families = read(page_of(engine)).values()
        now = {key: n for family in families if family.kind != "gauge" for key, n in family.samples.items()}
        assert last.keys() <= now.keys() and all(now[key] >= n for key, n in last.items())
        last = now
    assert value(page_of(engine), "tandem:generation_tokens_total") == 8 * 15
