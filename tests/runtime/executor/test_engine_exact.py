"""The engine over real kernels: whatever drafts, neighbours, cancels and threads, each text is the plain one's."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from tandem.errors import TandemError
from tandem.prices import PriceModel
from tandem.runtime.checks.lab import token_ids
from tandem.runtime.drafters.base import Drafter
from tandem.runtime.drafters.lookup import lookup_drafters
from tandem.runtime.drafters.scripted import Guess, ScriptedDrafter
from tandem.runtime.engine import Engine
from tandem.runtime.request import FinishReason, LaneStats, Penalties, Request, Sampling
from tandem.tree import DraftTree
from tests.compile.models import oracle
from tests.fake_guide import Remainders
from tests.fakes import Recorder
from tests.staged import Staged, stage
from tests.tiny import VOCAB_SIZE, make_checkpoint

CONTEXT, NUM_LANES = 384, 4
BLOCKS = (CONTEXT + 32) // 64 + 1


class Sink:
    """Keeps an answer. `enough` ids end it from within; `cancel` runs after `cancel_at` of them."""

    def __init__(self, enough: int = 10**9, cancel_at: int = 10**9) -> None:
        self.ids: list[int] = []
        self.reason: FinishReason | None = None
        self.cancel: Callable[[], None] = lambda: None
        self.enough, self.cancel_at = enough, cancel_at

    def tokens(self, ids: list[int]) -> bool:
        self.ids += ids
        if len(self.ids) >= self.cancel_at:
            self.cancel()
        return len(self.ids) >= self.enough

    def finished(self, reason: FinishReason, stats: LaneStats, error: TandemError | None) -> None:
        assert self.reason is None and error is None
        self.reason = reason


def requests(rng: random.Random, count: int) -> list[Request]:
    """Prompts of 1 to 300 ids, some that repeat themselves, some greedy, some sampled."""
    made = []
    for _ in range(count):
        length = rng.choice([1, 2, 31, 63, 64, 65, 127, 128, 129, rng.randint(1, 300)])
        block = token_ids(rng.choice([5, 17, 300]), VOCAB_SIZE, rng.randrange(1000))
        sampling = Sampling(
            temperature=rng.choice([0.5, 1.0, 1.7]), top_p=rng.choice([1.0, 0.8]), top_k=rng.choice([0, 20]),
            min_p=rng.choice([0.0, 0.02]), seed=rng.randrange(2**32),
        )  # fmt: skip
        stops = frozenset(rng.sample(range(VOCAB_SIZE), rng.choice([0, 0, 3, 12])))
        prompt = tuple((block * length)[:length])
        penalties = Penalties(
            repetition=rng.choice([1.0, 1.2]), frequency=rng.choice([0.0, 0.5]), presence=rng.choice([0.0, 1.0]),
            no_repeat_ngram_size=rng.choice([0, 3]), logit_bias=((rng.randrange(VOCAB_SIZE), 2.0),),
        )  # fmt: skip
        made.append(
            Request(
                prompt, rng.choice([1, 2, 30, 70, 500]), rng.choice([Sampling(), sampling]), stops,
                penalties=rng.choice([Penalties(), Penalties(), penalties]),
            )
        )  # fmt: skip
    return made


def plain(staged: Staged, request: Request) -> Sink:
    """Alone, on one thread, one token a pass from the first to the last."""
    executor = staged.executor(threads=1, num_pages=BLOCKS)
    engine = Engine(executor, drafters=None, prices=PriceModel(), max_lanes=1, prefill_chunk=1)
    sink = Sink()
    engine.submit(request, sink)
    while engine.step():
        pass
    engine.close()
    return sink


class Drafts:
    """A drafter a lane: lookup, or one that knows the answers and errs now and then."""

    def __init__(self, rng: random.Random, answers: dict[tuple[int, ...], list[int]]) -> None:
        self._rng, self._answers, self._lookup = rng, answers, lookup_drafters()

    def __call__(self) -> Drafter:
        rng = self._rng
        if rng.random() < 0.3:
            return self._lookup()
        sizes = (0, 0, 1, 2, 5, 13, 31)
        guesses = [Guess(rng.choice(sizes), rng.choice(sizes), rng.choice(sizes)) for _ in range(7)]
        return ScriptedDrafter(self._answers, guesses, VOCAB_SIZE, rng.randrange(1000))


class Widest:
    """Takes the first candidate of every lane in turn, as many rows as there are: prices would choose few."""

    def open(self, lane: int) -> None: ...

    def turn_pays(self, context: int, backlog: int, num_tokens: float, sync_ms: float) -> bool:
        return True

    def wants_model(
        self, candidates: list[list[DraftTree]], contexts: list[int], max_rows: int, lanes: list[int], source: str
    ) -> bool:
        return True

    def choose(
        self,
        candidates: list[list[DraftTree]],
        contexts: list[int],
        max_rows: int,
        lanes: list[int],
        draft_ms: Mapping[str, float] | None = None,
    ) -> list[DraftTree]:
        left, chosen = max_rows - len(candidates), []
        for trees in candidates:
            chosen.append(trees[0].truncate(left + 1) if trees else DraftTree.root(0))
            left -= chosen[-1].num_drafted
        return chosen

    def rests(self, lane: int, context: int) -> int:
        return 0

    def settle(self, committed: list[list[int]], *ms: float) -> None: ...

    def passed(self, *round_: object) -> None: ...

    def close(self, lane: int) -> None: ...


def play(staged: Staged, rng: random.Random, count: int) -> int:
    """One schedule against plain texts; returns the ids compared."""
    asked = requests(rng, count)
    wanted = [plain(staged, request) for request in asked]
    answers = {request.prompt: sink.ids for request, sink in zip(asked, wanted, strict=True)}
    executor = staged.executor(threads=rng.randint(1, 3), num_pages=rng.choice([1, 2, 4]) * BLOCKS)
    engine = Engine(
        executor,
        drafters=Drafts(rng, answers),
        prices=PriceModel(),
        router=rng.choice(["staircut", Widest()]),
        max_lanes=rng.randint(1, NUM_LANES),
        prefill_chunk=rng.choice([1, 7, 32, 64, None]),
    )
    sinks = []
    for request in asked:
        sink = Sink(rng.choice([10**9, 10**9, rng.randint(1, 60)]), rng.choice([10**9, 10**9, rng.randint(1, 60)]))
        ticket = engine.submit(request, sink)
        sink.cancel = lambda ticket=ticket: engine.cancel(ticket)
        sinks.append(sink)
        for _ in range(rng.choice([0, 1, 9])):
            engine.step()
    while engine.step():
        pass
    for sink, alone in zip(sinks, wanted, strict=True):
        assert sink.ids == alone.ids[: len(sink.ids)]
        if sink.reason is FinishReason.CANCELLED or len(sink.ids) >= min(sink.enough, sink.cancel_at):
            assert len(sink.ids) >= min(sink.enough, sink.cancel_at)
        else:
            assert sink.ids == alone.ids and sink.reason is alone.reason
    assert engine.num_free_pages == executor.num_pages and engine.num_free_slots == executor.num_slots
    engine.close()
    return sum(len(sink.ids) for sink in sinks)


@pytest.fixture(
    scope="module",
    params=[
        *(("llama", "bf16"), ("qwen3", "fp32"), ("smollm2", "int8"), ("qwen2", "int4")),
        *(("qwen3_5", "fp32"), ("qwen3_5-odd", "bf16"), ("qwen3_5-tied", "int4")),
    ],
    ids="-".join,
)
def staged(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Staged:
    family, profile = request.param
    folder: Path = make_checkpoint(tmp_path_factory.mktemp("exact") / family, family)
    return stage(oracle.read_config(folder), oracle.read_tensors(folder), profile, folder, context_length=CONTEXT)


@pytest.mark.parametrize("chunk", [1, 9, None])
def test_lanes_beside_prompts_have_the_bits_that_they_have_alone(staged: Staged, chunk: int | None) -> None:
    """Ids and logprobs of lanes that take steps in the passes of others' prompts, which come one after another."""
    noisy = Sampling(temperature=1.2, top_p=0.9, seed=11)
    asked = [
        Request((5, 6, 7), 60, logprobs=3),
        Request((8,) * 70, 50, noisy, logprobs=1),
        Request((9, 4), 45, noisy, penalties=Penalties(repetition=1.3, presence=0.5), logprobs=0),
        Request((2, 3), 40, guides=(Remainders,), logprobs=2),
    ]
    coming = [Request(tuple(token_ids(length, VOCAB_SIZE, length)), 2, logprobs=1) for length in (150, 129, 31, 64)]
    engine = Engine(staged.executor(threads=2, num_pages=8 * BLOCKS), drafters=lookup_drafters(), prices=PriceModel(),
                    prefill_chunk=chunk)  # fmt: skip
    sinks = [Recorder() for _ in (*asked, *coming)]
    for request, sink in zip((*asked, *coming), sinks, strict=True):
        engine.submit(request, sink)
        for _ in range(3):
            engine.step()
    while engine.step():
        pass
    assert engine.meter.plain_rounds.values["mixed"] > 3
    engine.close()
    for request, sink in zip((*asked, *coming), sinks, strict=True):
        engine = Engine(staged.executor(threads=1, num_pages=BLOCKS), drafters=None, prices=PriceModel(), max_lanes=1)
        alone = Recorder()
        engine.submit(request, alone)
        while engine.step():
            pass
        engine.close()
        assert (sink.ids, sink.logprobs, sink.reason) == (alone.ids, alone.logprobs, alone.reason)


@pytest.mark.parametrize("seed", range(4))
def test_every_text_is_the_plain_one(staged: Staged, seed: int) -> None:
    assert play(staged, random.Random(seed), 6) > 0
