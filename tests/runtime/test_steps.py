"""Steps of lanes in passes of others' prompts: who draws, who is told, what is counted and whose time it is."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from tandem.keys import Kind
from tandem.runtime.drafters.scripted import Guess, ScriptedDrafter
from tandem.runtime.executor.base import Outcome, Rows
from tandem.runtime.meter import Plain
from tandem.runtime.request import Penalties, Request, Sampling
from tests.drafted import answer
from tests.fake_routers import EvenRouter
from tests.fakes import Recorder, ScriptedExecutor, geometry
from tests.mixed import Logged, begun, plain
from tests.runtime.test_engine import engine_for

COUNTED = Penalties(repetition=1.3, presence=0.5)
SAMPLED = Sampling(temperature=1.0, top_p=0.9, seed=3)


def test_what_is_counted() -> None:
    router, asked = EvenRouter(), list[str]()

    def heard_of(name: str) -> None:
        own = getattr(router, name)
        setattr(router, name, lambda *arguments: (asked.append(name), own(*arguments))[1])

    for name in ("choose", "settle", "passed", "rests", "wants_model"):
        heard_of(name)
    early, late = Request((1, 2), 30), Request((7,) * 30, 2)
    engine = engine_for(ScriptedExecutor(), [early, late], [Guess(2)], router=router)
    (first,) = begun(engine, early)
    engine.step()
    meter = engine.meter
    second, before, blocks, between = Recorder(), len(asked), len(first.blocks), meter.between.count
    plain_rounds = meter.rounds.values["plain"]
    engine.submit(late, second)
    engine.step()
    assert len(asked) == before > 0, "what a mixed pass takes tells a router of no round"
    assert len(first.blocks) == blocks + 1 and len(first.blocks[-1]) == 1 and second.ids
    assert meter.between.count == between + 1
    assert meter.rounds.values["plain"] == plain_rounds + 1 and meter.plain_rounds.values[Plain.MIXED] == 1
    while engine.step():
        pass
    for sink, length in ((first, 30), (second, 2)):
        assert sink.stats is not None and sink.stats.rounds + sink.stats.accepted == length - 1
    assert sum(meter.plain_rounds.values.values()) == meter.rounds.values["plain"]


class Clock:
    """Each pass takes a second."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def test_the_time_is_the_prompts_and_the_lanes(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()

    class Slow(ScriptedExecutor):
        def run(self, kind: Kind, rows: Rows) -> Outcome:
            clock.now += 1.0
            return super().run(kind, rows)

    for module in ("prefill", "round"):
        monkeypatch.setattr(f"tandem.runtime.{module}.perf_counter", clock)
    engine = plain(Slow())
    (early,) = begun(engine, Request((1, 2), 5))
    engine.step()
    late = Recorder()
    engine.submit(Request((7,) * 30, 1), late)
    while engine.step():
        pass
    assert early.stats is not None and late.stats is not None
    assert (early.stats.prefill_ms, early.stats.decode_ms) == (1000.0, 4000.0)
    assert (late.stats.prefill_ms, late.stats.decode_ms) == (1000.0, 0.0)


@pytest.mark.parametrize("penalties", [Penalties(), COUNTED])
def test_a_device_draws_in_mixed_passes_too(penalties: Penalties) -> None:
    executor = Logged(capacities=geometry(draws=True))
    engine = plain(executor, prefill_chunk=4)
    asked = [Request((1, 2), 30, SAMPLED, penalties=penalties), Request((3, 4), 30)]
    sinks = begun(engine, *asked)
    late = Recorder()
    engine.submit(Request((7,) * 40, 3, SAMPLED), late)
    while engine.step():
        pass
    mixed = [rows for rows in executor.log if len(set(rows.lane)) == 3 and len(rows.token) > 3]
    assert len(mixed) == 10 and all(rows.wishes is not None for rows in mixed)
    assert executor.log[0].wishes is None, "a pass of prompts alone"
    # The first token of each of the two that are sampled is the host's, all others the device's.
    assert executor.draws.drawn == 29 + 2
    wanted = [*asked, Request((7,) * 40, 3, SAMPLED)]
    assert [sink.ids for sink in [*sinks, late]] == [answer(request) for request in wanted]


def test_the_host_draws_where_a_pass_has_more_outputs_than_a_device_takes() -> None:
    executor = Logged(capacities=geometry(draws=True, max_rows=80, max_outputs=80, context_length=192))
    engine = plain(executor)
    request = Request((1, 2), 30, SAMPLED, penalties=COUNTED)
    (sink,) = begun(engine, request)
    engine.step()
    late = Recorder()
    engine.submit(Request((7,) * 60, 2, prompt_logprobs=1), late)
    first = len(executor.log)
    while engine.step():
        pass
    assert [len(rows.output_row) > 32 for rows in executor.log[first : first + 2]] == [True, False]
    assert [rows.wishes is None for rows in executor.log[first : first + 2]] == [True, False]
    assert sink.ids == answer(request)


def test_a_drafter_that_rests_hears_of_those_tokens_later() -> None:
    class Resting(EvenRouter):
        def rests(self, lane: int, context: int) -> int:
            return 3

    told: list[Sequence[int]] = []

    class Listening(ScriptedDrafter):
        def observe(self, tokens: Sequence[int]) -> None:
            told.append(list(tokens))
            super().observe(tokens)

    request = Request((1, 2), 20)
    engine = plain(
        ScriptedExecutor(),
        router=Resting(),
        drafters=lambda: Listening({request.prompt: answer(request)}, [], geometry().vocab_size),
    )
    (sink,) = begun(engine, request)
    engine.step()
    engine.submit(Request((7,) * 80, 1, speculate=False), Recorder())
    while engine.step():
        pass
    assert [token for tokens in told for token in tokens] == sink.ids == answer(request)
    assert len(told) < 12
