"""Ends of answers and edges of requests: stops, lengths, cancels, refusals, turns."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from tandem.errors import CapacityError, RequestError, UsageError
from tandem.keys import Kind
from tandem.runtime.drafters.scripted import Guess, ScriptedDrafter
from tandem.runtime.engine import Engine
from tandem.runtime.request import FinishReason, Penalties, Request, Sampling
from tandem.tree import DraftTree
from tests.fake_routers import EvenRouter, FreePrices
from tests.fakes import Recorder, ScriptedExecutor, geometry, plain_text

VOCAB = geometry().vocab_size
PROMPT = (1,)


def scripted(target: Sequence[int], guess: Guess, **options: object) -> tuple[Engine, ScriptedExecutor]:
    """An engine whose target emits `target` after PROMPT and whose drafter knows it."""
    executor = ScriptedExecutor([*PROMPT, *target])
    options = {"router": EvenRouter(), "prices": FreePrices(), **options}
    answers = {PROMPT: target}
    return Engine(executor, drafters=lambda: ScriptedDrafter(answers, [guess], VOCAB), **options), executor


def plain(executor: ScriptedExecutor | None = None, **options: object) -> Engine:
    return Engine(executor or ScriptedExecutor(), drafters=None, prices=FreePrices(), router=EvenRouter(), **options)


def serve(engine: Engine, request: Request, sink: Recorder | None = None) -> Recorder:
    sink = sink or Recorder()
    engine.submit(request, sink)
    while engine.step():
        pass
    return sink


STOP = 7


@pytest.mark.parametrize(
    ("max_tokens", "ids", "reason"),
    [
        (5, [10, 11, STOP], FinishReason.STOP),
        (3, [10, 11, STOP], FinishReason.STOP),
        (2, [10, 11], FinishReason.LENGTH),
        (1, [10], FinishReason.LENGTH),
    ],
)
@pytest.mark.parametrize("guess", [Guess(), Guess(6), Guess(6, 0, 4), Guess(1)])
def test_bug_37_the_earlier_of_stop_and_length_wins(
    max_tokens: int, ids: list[int], reason: FinishReason, guess: Guess
) -> None:
    engine, _ = scripted([10, 11, STOP, 20, 21, 22], guess)
    sink = serve(engine, Request(PROMPT, max_tokens, stop_ids=frozenset({STOP})))
    assert (sink.ids, sink.reason) == (ids, reason)
    assert sink.stats is not None and sink.stats.completion_tokens == len(ids)


def test_bug_40_nothing_follows_a_stop_inside_a_block() -> None:
    engine, executor = scripted([10, STOP, 12, 13], Guess(4))
    sink = serve(engine, Request(PROMPT, 9, stop_ids=frozenset({STOP})))
    assert (sink.blocks, sink.reason) == ([[10], [STOP]], FinishReason.STOP)
    assert executor.passes[-1] == (Kind.VERIFY_CHAIN, 4)
    engine, _ = scripted([10, STOP, 12, 13], Guess(4))
    assert serve(engine, Request(PROMPT, 4)).ids == [10, STOP, 12, 13]


def test_bug_35_a_sink_sees_every_token_of_a_block_and_may_stop_in_it() -> None:
    target = list(range(2, 18))
    engine, _ = scripted(target, Guess(14))
    sink = serve(engine, Request(PROMPT, 16), Recorder(wants=3))
    assert sink.blocks == [[2], target[1:16]]
    assert sink.reason is FinishReason.STOP


def test_the_context_ends_an_answer_with_length() -> None:
    context = geometry().context_length
    request = Request(tuple(i % VOCAB for i in range(90)), 1000)
    answers = {request.prompt: plain_text(request, VOCAB, context)}
    executor = ScriptedExecutor()
    engine = Engine(
        executor,
        drafters=lambda: ScriptedDrafter(answers, [Guess(8, 8, 8)], VOCAB),
        prices=FreePrices(),
        router=EvenRouter(),
    )
    sink = serve(engine, request)
    assert (len(sink.ids), sink.ids, sink.reason) == (context - 90, answers[request.prompt], FinishReason.LENGTH)


@pytest.mark.parametrize(
    ("request_", "param", "words"),
    [
        (Request((), 5), "prompt", ["empty"]),
        (Request((1,) * 96, 5), "prompt", ["96"]),
        (Request((1,) * 130, 5), "prompt", ["130", "96"]),
        (Request((1, VOCAB), 5), "prompt", [str(VOCAB)]),
        (Request((-1,), 5), "prompt", ["-1", str(VOCAB)]),
        (Request((1,), 1, prompt_logprobs=21), "prompt_logprobs", ["21", "20"]),
        (Request((1,), -3), "max_tokens", ["-3"]),
        (Request((1,), 5, penalties=Penalties(logit_bias=((23, 1.0),))), "logit_bias", ["23"]),
        (Request((1,), 5, penalties=Penalties(min_tokens=6)), "min_tokens", ["6", "5"]),
        (Request((1,), 5, penalties=Penalties(presence=3)), "presence_penalty", ["3"]),
        (Request((1,), 5, Sampling(top_p=2)), "top_p", ["2"]),
    ],
)
def test_a_request_that_can_never_succeed_is_refused(request_: Request, param: str, words: list[str]) -> None:
    engine = plain()
    with pytest.raises(RequestError) as caught:
        engine.submit(request_, Recorder())
    assert caught.value.param == param
    assert all(word in str(caught.value) for word in words)
    if len(request_.prompt) >= 96:
        assert caught.value.code == "context_length_exceeded"
    assert not engine.step()


def test_a_small_pool_bounds_the_context() -> None:
    executor = ScriptedExecutor(num_pages=7)  # 56 slots, 32 of them behind the text
    sink = serve(plain(executor), Request((1,) * 20, 50))
    assert (len(sink.ids), sink.reason) == (4, FinishReason.LENGTH)
    with pytest.raises(RequestError, match="24"):
        plain(executor).submit(Request((1,) * 24, 1), Recorder())
    with pytest.raises(CapacityError, match="4 pages"):
        plain(ScriptedExecutor(num_pages=4))


def test_max_lanes_beyond_the_bundle_is_a_usage_error() -> None:
    with pytest.raises(UsageError, match=r"is 5; .* 4 lanes"):
        plain(max_lanes=5)


def test_a_full_queue_refuses_and_the_queue_is_first_come_first_served() -> None:
    engine = plain(max_lanes=1, max_queue=2)
    sinks = [Recorder() for _ in range(4)]
    for sink in sinks[:3]:
        engine.submit(Request((1, 2), 4), sink)
    with pytest.raises(CapacityError):
        engine.submit(Request((1, 2), 4), sinks[3])
    ends = []
    while engine.step():
        ends += [i for i, sink in enumerate(sinks) if sink.reason and i not in ends]
    assert ends == [0, 1, 2]


def test_prefill_and_rounds_take_turns() -> None:
    executor = ScriptedExecutor()
    engine = plain(executor, prefill_chunk=10)
    short, long = Recorder(), Recorder()
    engine.submit(Request((1, 2), 20), short)
    engine.step()
    engine.submit(Request((3,) * 50, 2), long)
    while not long.blocks:
        engine.step()
    rows = [count for _, count in executor.passes[1:]]
    assert rows[:10] == [1, 11, 1, 11, 1, 11, 1, 11, 1, 11]


def test_one_prefill_pass_holds_several_prompts() -> None:
    executor = ScriptedExecutor()
    engine = plain(executor, prefill_chunk=16)
    for num in (20, 3, 30, 4):
        engine.submit(Request((1,) * num, 1), Recorder())
    engine.step()
    assert executor.passes == [(Kind.EXTEND, 16 + 3 + 16 + 4)]


def test_a_prefill_pass_stays_within_its_rows() -> None:
    executor = ScriptedExecutor()
    engine = plain(executor)
    for _ in range(2):
        engine.submit(Request((1,) * 30, 1), Recorder())
    while engine.step():
        pass
    assert executor.passes == [(Kind.EXTEND, 40), (Kind.EXTEND, 20)]


def test_bug_53_a_cancel_takes_effect_before_the_next_pass() -> None:
    executor = ScriptedExecutor()
    engine = plain(executor, max_lanes=1)
    running, waiting = Recorder(), Recorder()
    tickets = [engine.submit(Request((1, 2), 60), sink) for sink in (running, waiting)]
    for _ in range(3):
        engine.step()
    for ticket in tickets:
        engine.cancel(ticket)
    passes = len(executor.passes)
    assert not engine.step()
    assert len(executor.passes) == passes and engine.num_free_pages == executor.num_pages
    assert running.reason is waiting.reason is FinishReason.CANCELLED
    assert len(running.ids) == 3


class Broken(Recorder):
    def tokens(self, ids: list[int]) -> bool:
        if len(self.blocks) == 2:
            raise OSError("the client is gone")
        return super().tokens(ids)


def test_a_sink_that_fails_cancels_its_own_lane_only() -> None:
    engine = plain()
    broken, sound = Broken(), Recorder()
    for sink in (broken, sound):
        engine.submit(Request((1, 2), 6), sink)
    while engine.step():
        pass
    assert (broken.reason, sound.reason) == (FinishReason.CANCELLED, FinishReason.LENGTH)


FAULTS: dict[str, Callable[[int], DraftTree]] = {
    "not in the vocabulary": lambda anchor: DraftTree.chain(anchor, [VOCAB], [0.5], "faulty"),
    "another anchor": lambda anchor: DraftTree.chain(anchor + 1, [3], [0.5], "faulty"),
    "a parent behind its child": lambda anchor: DraftTree([anchor, 3, 4], [-1, 2, 0], [1.0] * 3, ["faulty"] * 3),
    "a parent of its own": lambda anchor: DraftTree([anchor, 3], [-1, 1], [1.0] * 2, ["faulty"] * 2),
    "two anchors": lambda anchor: DraftTree([anchor, 3], [-1, -1], [1.0] * 2, ["faulty"] * 2),
    "no anchor": lambda anchor: DraftTree([anchor, 3], [0, 0], [1.0] * 2, ["faulty"] * 2),
    "too few parents": lambda anchor: DraftTree([anchor, 3, 4], [-1, 0], [1.0] * 3, ["faulty"] * 3),
    "too few scores": lambda anchor: DraftTree([anchor, 3], [-1, 0]),
}


class Faulty(ScriptedDrafter):
    fault = ""

    def propose(self, max_nodes: int) -> list[DraftTree]:
        return [FAULTS[self.fault](self._anchor)] if self._length > 6 else super().propose(max_nodes)


@pytest.mark.parametrize("fault", FAULTS)
def test_a_drafter_that_fails_costs_its_lane_the_guesses_only(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Faulty, "fault", fault)
    request = Request((1, 2), 12)
    truth = plain_text(request, VOCAB, 96)
    engine = Engine(
        ScriptedExecutor(),
        drafters=lambda: Faulty({(1, 2): truth}, [Guess(1)], VOCAB),
        prices=FreePrices(),
        router=EvenRouter(),
    )
    sink = serve(engine, request)
    assert (sink.ids, sink.reason) == (truth, FinishReason.LENGTH)
    assert sink.stats is not None and sink.stats.drafted == 2


def test_a_failed_pass_ends_every_request_with_an_error() -> None:
    engine = plain(ScriptedExecutor(fail_after=3), max_lanes=1)
    sinks = [Recorder(), Recorder()]
    for sink in sinks:
        engine.submit(Request((1, 2), 60), sink)
    with pytest.raises(RuntimeError):
        while engine.step():
            pass
    for sink in sinks:
        assert sink.reason is FinishReason.ERROR and "the device is gone" in str(sink.error)


def test_prices_see_every_pass_of_a_round() -> None:
    prices = FreePrices()
    engine, executor = scripted(list(range(2, 20)), Guess(3, 1, 5), prices=prices)
    serve(engine, Request(PROMPT, 12))
    rounds = [(kind, rows) for _, kind, rows, _ in prices.seen if kind is not Kind.COMMIT]
    assert rounds == executor.passes[1:]
    assert any(kind is Kind.COMMIT for _, kind, _, _ in prices.seen)


def test_close_cancels_what_is_left() -> None:
    executor = ScriptedExecutor()
    engine = plain(executor, max_lanes=1)
    sinks = [Recorder(), Recorder()]
    for sink in sinks:
        engine.submit(Request((1, 2), 60), sink)
    engine.step()
    engine.close()
    assert executor.closed and all(sink.reason is FinishReason.CANCELLED for sink in sinks)


def test_a_request_ends_when_its_time_is_over() -> None:
    """What it has is given; who still waits for a lane is told to come back; others go on."""
    engine = plain(ScriptedExecutor(), max_lanes=2, request_timeout=30.0)
    late, sound, waiting = Recorder(), Recorder(), Recorder()
    tickets = [engine.submit(Request((1, 2), 20), sink) for sink in (late, sound, waiting)]
    for _ in range(4):
        engine.step()
    tickets[0].asked -= 31
    tickets[2].asked -= 31
    while engine.step():
        pass
    assert late.reason is FinishReason.TIMEOUT and 0 < len(late.ids) < 20
    assert late.ids == sound.ids[: len(late.ids)]
    assert (sound.reason, len(sound.ids)) == (FinishReason.LENGTH, 20)
    assert (waiting.reason, waiting.ids) == (FinishReason.ERROR, [])
    assert isinstance(waiting.error, CapacityError) and waiting.error.status == 429
    assert engine.num_running == engine.num_waiting == 0
