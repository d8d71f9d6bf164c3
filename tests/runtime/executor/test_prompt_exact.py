"""A prompt's logprobs over real kernels: bit-equal to those of one token a pass, whatever is read in beside it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tandem.prices import PriceModel
from tandem.runtime.checks.lab import token_ids
from tandem.runtime.engine import Engine
from tandem.runtime.logprobs import TokenLogprob, measure
from tandem.runtime.request import Request
from tests.compile.models import oracle
from tests.fakes import Recorder
from tests.staged import Lane, Staged, stage
from tests.tiny import VOCAB_SIZE, make_checkpoint

CONTEXT = 256


@pytest.fixture(scope="module", params=[("smollm2", "bf16"), ("qwen3_5", "fp32")], ids="-".join)
def staged(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Staged:
    family, profile = request.param
    folder: Path = make_checkpoint(tmp_path_factory.mktemp("prompts") / family, family)
    return stage(oracle.read_config(folder), oracle.read_tensors(folder), profile, folder, context_length=CONTEXT)


def one_by_one(staged: Staged, prompt: tuple[int, ...], count: int) -> list[TokenLogprob]:
    executor = staged.executor(threads=1)
    rows: np.ndarray = Lane(executor).extend(prompt, chunk=1)
    executor.close()
    return [measure(row, token, count) for row, token in zip(rows, prompt[1:], strict=False)]


def test_bit_equal_to_one_token_a_pass(staged: Staged) -> None:
    asked = [
        Request(tuple(token_ids(length, VOCAB_SIZE, length)), length % 3, prompt_logprobs=count)
        for length, count in ((150, 4), (1, 0), (63, 2), (65, 20), (34, 0))
    ]
    wanted = [one_by_one(staged, request.prompt, request.prompt_logprobs or 0) for request in asked]
    beside = replace(asked[0], prompt_logprobs=None, max_tokens=40)
    for threads, lanes, chunk in ((1, 1, None), (2, 4, None), (2, 4, 7), (1, 3, 32)):
        executor = staged.executor(threads=threads, num_pages=40)
        engine = Engine(executor, drafters=None, prices=PriceModel(), max_lanes=lanes, prefill_chunk=chunk)
        sinks = [Recorder() for _ in asked]
        engine.submit(beside, Recorder())
        for request, sink in zip(asked, sinks, strict=True):
            engine.submit(request, sink)
        while engine.step():
            pass
        engine.close()
        assert [sink.prompt for sink in sinks] == wanted
        assert [len(sink.ids) for sink in sinks] == [request.max_tokens for request in asked]
