"""Models that draft through the engine over real kernels: texts are the plain ones, guesses depend on text alone."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from tandem.compile.drafters import Drafter, Mtp
from tandem.keys import Kind
from tandem.prices import PriceModel
from tandem.runtime.drafters import block, mtp
from tandem.runtime.drafters.base import MODELS
from tandem.runtime.drafters.lookup import lookup_drafters
from tandem.runtime.drafters.mtp import MtpDrafter
from tandem.runtime.engine import Engine
from tandem.runtime.executor.base import DraftOutcome, DraftRows
from tandem.runtime.http.order import candidates
from tandem.runtime.request import FinishReason, Request, Sampling
from tests.compile.models import oracle
from tests.fake_routers import RandomRouter
from tests.fakes import Recorder
from tests.staged import Staged, stage
from tests.tiny import VOCAB_SIZE, make_checkpoint
from tests.tiny_drafter import drafter_of, make_drafter
from tests.tiny_hybrid import add_mtp

CONTEXT, NUM_LANES, MAX_ROWS = 384, 4, 64
BLOCKS = (CONTEXT + 32) // 64 + 1

Guesses = dict[tuple[tuple[int, ...], tuple[int, ...] | int], bytes]
"""Bits of what was guessed behind a text and the chain so far, or in a slot of its block."""


class Heard:
    """An executor whose drafts are compared with all that were heard behind the same text before."""

    def __init__(self, executor: Any, guesses: Guesses) -> None:
        self._executor, self._guesses = executor, guesses
        self.engine: Engine | None = None
        self.compared = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._executor, name)

    def draft(self, kind: Kind, rows: DraftRows) -> DraftOutcome:
        outcome: DraftOutcome = self._executor.draft(kind, rows)
        assert self.engine is not None and self.engine._models is not None
        for output, row in enumerate(rows.output_row):
            drafter = self.engine._models._members[rows.lane[row]].drafter
            behind: tuple[int, ...] | int = rows.position[row] - len(drafter.ids)
            if isinstance(drafter, MtpDrafter):
                behind = tuple(options[0][0] for options in drafter._guesses)
            key, parts = (tuple(drafter.ids), behind), (outcome.token, outcome.logit, outcome.lse)
            lattice = () if outcome.score is None or outcome.walk is None else (outcome.score, outcome.walk)
            bits = b"".join(field[output].tobytes() for field in (*parts, *lattice))
            self.compared += key in self._guesses
            assert self._guesses.setdefault(key, bits) == bits, f"a guess behind {len(key[0])} ids and {key[1]}"
        return outcome


@pytest.fixture(
    scope="module",
    params=[
        ("mtp", "qwen3_5", "fp32"),
        ("mtp", "qwen3_5", "int8"),
        ("block", "llama", "fp32"),
        ("block", "qwen3_5", "int8"),
    ],
    ids="-".join,
)
def staged(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Staged:
    kind, family, profile = request.param
    folder: Path = make_checkpoint(tmp_path_factory.mktemp("models") / family, family)
    drafter: Drafter = Mtp()
    if kind == "mtp":
        add_mtp(folder)
    else:
        drafter = drafter_of(make_drafter(folder / "drafter", folder))
    config, tensors = oracle.read_config(folder), oracle.read_tensors(folder)
    return stage(config, tensors, profile, folder, context_length=CONTEXT, max_rows=MAX_ROWS, drafter=drafter)


def requests(rng: random.Random) -> list[Request]:
    """Texts that begin alike, so that some are met again at other places of other schedules."""
    text = [(7 * i * i + 3) % VOCAB_SIZE for i in range(330)]
    lengths = rng.sample([1, 2, 31, 63, 64, 65, 129, 200, 330], 4)
    samplings = [Sampling(), Sampling(), Sampling(temperature=0.7, seed=3)]
    return [Request(tuple(text[:n]), rng.choice([3, 20, 60]), rng.choice(samplings)) for n in lengths]


def plain(staged: Staged, asked: Request, known: dict[Request, list[int]]) -> list[int]:
    if asked not in known:
        engine, sink = Engine(staged.executor(num_pages=BLOCKS), drafters=None, prices=PriceModel()), Recorder()
        engine.submit(asked, sink)
        while engine.step():
            pass
        engine.close()
        known[asked] = sink.ids
    return known[asked]


def test_whatever_the_schedule_texts_and_guesses_are_the_same(staged: Staged, monkeypatch: pytest.MonkeyPatch) -> None:
    for kind in (mtp, block):
        monkeypatch.setattr(kind, "LEAST", 0.0)  # the model has learned nothing, so it is sure of nothing
    guesses, known, compared, drafted = Guesses(), dict[Request, list[int]](), 0, 0.0
    shared = 0.0
    for seed in range(6):
        rng = random.Random(seed)
        heard = Heard(staged.executor(threads=rng.randint(1, 2), num_pages=NUM_LANES * BLOCKS), guesses)
        heard.engine = engine = Engine(
            heard,  # type: ignore[arg-type]
            drafters=rng.choice([None, lookup_drafters()]),
            models=True,
            prices=PriceModel(),
            router=RandomRouter(seed),
            max_lanes=rng.randint(1, NUM_LANES),
            prefill_chunk=rng.choice([7, 32, None]),
        )
        asked, sinks = list[Request](), list[Recorder]()
        for request in requests(rng):
            choices = candidates(request, rng.choice([1, 2, 3]))
            came = [Recorder(wants=rng.choice([None, None, 9])) for _ in choices]
            engine.submit_all(list(zip(choices, came, strict=True)))
            asked += choices
            sinks += came
            for _ in range(rng.choice([0, 1, 9])):
                engine.step()
        while engine.step():
            pass
        for request, sink in zip(asked, sinks, strict=True):
            whole = plain(staged, request, known)
            assert sink.ids == whole[: len(sink.ids)] and sink.reason in (FinishReason.LENGTH, FinishReason.STOP)
            assert sink.reason is FinishReason.STOP or len(sink.ids) == len(whole)
        compared += heard.compared
        drafted += sum(engine.meter.drafted_by.values.get(source, 0) for source in MODELS)
        shared += engine.meter.prefix_hits.value
        engine.close()
    assert compared > 20 and drafted > 20 and shared > 64
