"""Choices of one prompt over real kernels: each text is that of a request of its own, whoever brought the prompt in."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tandem.prices import PriceModel
from tandem.runtime.checks.lab import token_ids
from tandem.runtime.drafters.lookup import lookup_drafters
from tandem.runtime.engine import Engine
from tandem.runtime.http.order import candidates
from tandem.runtime.request import FinishReason, Request, Sampling
from tests.compile.models import oracle
from tests.fake_routers import RandomRouter
from tests.fakes import Recorder
from tests.staged import Staged, stage
from tests.tiny import VOCAB_SIZE, make_checkpoint

CONTEXT, NUM_LANES, NUM_CHOICES = 384, 4, 5
BLOCKS = (CONTEXT + 32) // 64 + 1


@pytest.fixture(scope="module", params=[("llama", "int8"), ("qwen3_5", "fp32"), ("qwen3_5-odd", "bf16")], ids="-".join)
def staged(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Staged:
    family, profile = request.param
    folder: Path = make_checkpoint(tmp_path_factory.mktemp("siblings") / family, family)
    return stage(oracle.read_config(folder), oracle.read_tensors(folder), profile, folder, context_length=CONTEXT)


def alone(staged: Staged, request: Request) -> list[int]:
    engine, sink = Engine(staged.executor(num_pages=BLOCKS), drafters=None, prices=PriceModel()), Recorder()
    engine.submit(request, sink)
    while engine.step():
        pass
    engine.close()
    return sink.ids


@pytest.mark.parametrize("length", [65, 128, 129, 200])
def test_each_text_is_that_of_a_request_of_its_own(staged: Staged, length: int) -> None:
    """Three schedules a prompt: of lanes, chunks, drafts, pages, and of who hangs up before any token came."""
    prompt = tuple(token_ids(17, VOCAB_SIZE, length) * 20)[:length]
    asked = candidates(Request(prompt, 24, Sampling(1.0, seed=length)), NUM_CHOICES)
    texts = [alone(staged, request) for request in asked]
    assert len({tuple(text) for text in texts}) > 1
    for seed in range(3):
        rng = random.Random(seed)
        executor = staged.executor(threads=rng.randint(1, 2), num_pages=rng.choice([2, NUM_LANES]) * BLOCKS)
        engine = Engine(
            executor,
            drafters=rng.choice([None, lookup_drafters()]),
            prices=PriceModel(),
            router=RandomRouter(seed),
            max_lanes=rng.randint(2, NUM_LANES),
            prefill_chunk=rng.choice([7, 33, None]),
        )
        sinks = [Recorder() for _ in asked]
        tickets = engine.submit_all(list(zip(asked, sinks, strict=True)))
        for gone in rng.choice([(), (0,), (0, 1), (1,)]):
            for _ in range(rng.randint(0, 4)):
                engine.step()
            engine.cancel(tickets[gone])
        while engine.step():
            pass
        for sink, text in zip(sinks, texts, strict=True):
            assert sink.ids == text[: len(sink.ids) if sink.reason is FinishReason.CANCELLED else None]
        assert engine.meter.prefix_hits.value >= (length - 1) // 64 * 64
        assert engine.num_free_pages == executor.num_pages and engine.num_free_slots == executor.num_slots
        engine.close()
