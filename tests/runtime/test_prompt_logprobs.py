"""Logprobs of a prompt's own tokens: by definition, whatever chunks, lanes and company it is read in with."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from tandem.keys import Kind
from tandem.runtime.drafters.scripted import Guess
from tandem.runtime.logprobs import TokenLogprob, measure
from tandem.runtime.request import FinishReason, Request, Sampling
from tests.fake_recurrent import RecurrentExecutor
from tests.fakes import Recorder, ScriptedExecutor, geometry, marks, row_logits
from tests.runtime.test_engine import VOCAB, answer, check_kv, engine_for, serve

FEW = geometry(max_outputs=32, max_rows=40)


def definition(ids: Sequence[int], count: int) -> list[TokenLogprob]:
    """Each token but the first against the logits of the row before it."""
    rows = [row_logits(own, VOCAB) for own in marks(ids)]
    return [measure(row, token, count) for row, token in zip(rows, ids[1:], strict=False)]


asks = st.builds(
    Request,
    prompt=st.sampled_from([1, 2, 8, 31, 32, 33, 40, 41, 64, 90]).flatmap(
        lambda n: st.lists(st.integers(0, VOCAB - 1), min_size=n, max_size=n).map(tuple)
    ),
    max_tokens=st.sampled_from([0, 0, 1, 5]),
    sampling=st.sampled_from([Sampling(), Sampling(1.0, seed=3)]),
    logprobs=st.none() | st.integers(0, 3),
    prompt_logprobs=st.none() | st.integers(0, 5),
)


@settings(max_examples=80)
@given(
    asked=st.lists(st.tuples(asks, st.integers(0, 6)), min_size=1, max_size=6),
    num_lanes=st.integers(1, 4),
    chunk=st.sampled_from([1, 5, 16, 40]),
    kind=st.sampled_from([ScriptedExecutor, RecurrentExecutor]),
)
def test_the_same_whatever_the_chunks_lanes_and_company(
    asked: list[tuple[Request, int]], num_lanes: int, chunk: int, kind: type[ScriptedExecutor]
) -> None:
    executor = kind()
    requests = [request for request, _ in asked]
    engine = engine_for(executor, requests, [Guess(2, 1)], max_lanes=num_lanes, prefill_chunk=chunk)
    sinks = [Recorder() for _ in asked]
    busy, turn = True, 0
    while busy or turn <= 6:
        for (request, start), sink in zip(asked, sinks, strict=True):
            if start == turn:
                engine.submit(request, sink)
        busy = engine.step()
        check_kv(engine, executor)
        turn += 1
    for request, sink in zip(requests, sinks, strict=True):
        count = request.prompt_logprobs
        assert sink.prompt == ([] if count is None else definition(request.prompt, count))
        assert sink.ids == answer(request) and sink.reason is FinishReason.LENGTH
        assert len(sink.logprobs) == (0 if request.logprobs is None else len(sink.ids))
    assert engine.num_free_pages == executor.num_pages


def test_a_prompt_that_is_measured_leaves_the_others_their_outputs() -> None:
    """The long one is first and could take all 32 outputs of a pass for itself."""
    executor = ScriptedExecutor(capacities=FEW)
    long, short = Request((1,) * 80, 0, prompt_logprobs=0), Request((2, 3), 1)
    engine = engine_for(executor, [short])
    sinks = [Recorder(), Recorder()]
    engine.submit(long, sinks[0])
    engine.submit(short, sinks[1])
    engine.step()
    assert sinks[1].ids and executor.passes == [(Kind.EXTEND, 31 + 2)]
    engine.submit(replace(long, prompt=(2,) * 80), other := Recorder())
    engine.step()
    assert executor.passes[1] == (Kind.EXTEND, 32), "two of them have half each"
    assert (len(sinks[0].prompt), len(other.prompt)) == (31 + 16, 16)


def test_a_request_of_no_tokens_ends_when_its_prompt_is_in() -> None:
    executor = ScriptedExecutor()
    for prompt_logprobs in (None, 0):
        request = Request((4, 2), 0, prompt_logprobs=prompt_logprobs)
        (sink,) = serve(engine_for(executor), executor, request)
        assert (sink.ids, sink.reason) == ([], FinishReason.LENGTH)
        assert sink.stats is not None and sink.stats.completion_tokens == sink.stats.rounds == 0
    assert executor.passes == [(Kind.EXTEND, 2)] * 2


def test_a_sink_that_fails_at_a_prompt_is_cancelled() -> None:
    class Failing(Recorder):
        def prompt_measured(self, logprobs: Sequence[TokenLogprob]) -> None:
            raise RuntimeError("the reader is gone")

    for max_tokens, chunk in ((0, 3), (1, 3), (0, 40), (1, 40), (5, 40)):
        engine = engine_for(ScriptedExecutor(), prefill_chunk=chunk)
        engine.submit(Request((1, 2, 3, 4), max_tokens, prompt_logprobs=1), sink := Failing())
        while engine.step():
            pass
        assert (sink.ids, sink.reason) == ([], FinishReason.CANCELLED)
