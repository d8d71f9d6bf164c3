"""Holds a bundle to the promise: whatever drafts, widths, lanes, chunks and threads, ids and bits are the plain ones.

The oracle is the same engine with one lane, the first number of threads and no drafter. Knows nothing of files.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from tandem.artifacts.io import Geometry
from tandem.errors import TandemError
from tandem.keys import MAX_TREE_ROWS
from tandem.prices import PriceModel
from tandem.runtime.checks.design import DRAFTERS, MAX_LANES, SCRIPTED, SHAPES, Case, all_widths, design, lengths
from tandem.runtime.checks.forced import FixedWidth, forced_drafters, shares
from tandem.runtime.checks.lab import KEPT_BYTES, Lab, pages_for, token_ids
from tandem.runtime.checks.prompts import last
from tandem.runtime.checks.proof_entries import prove, text_tokens
from tandem.runtime.checks.spec_report import SpecReport
from tandem.runtime.checks.watch import Recording, Watch
from tandem.runtime.drafters.base import MODELS, Drafter, model_of
from tandem.runtime.engine import Engine
from tandem.runtime.executor.base import Executor
from tandem.runtime.request import FinishReason, Request, Sampling

SAMPLED = Sampling(temperature=0.8, top_p=0.95, seed=2026)
CHUNKS = (16, 5, 300)
"""Rows that a prompt takes of a pass, besides a whole pass."""

PROOF_STEPS = 61
Threads = int | None
"""A team's size, None on a device without one."""


@dataclass(frozen=True, slots=True)
class Ask:
    """A request: the last `length` ids of a prompt, greedy or sampled."""

    prompt: str
    length: int
    sampled: bool


@dataclass(frozen=True, slots=True)
class Options:
    """How much is checked: `tokens` ids of each answer, on teams of each of `threads`, the first for plain answers.

    `quick` takes fewer cases. `chunks` are prefill sizes with programs of their own.
    """

    tokens: int
    threads: tuple[Threads, ...] = (None,)
    quick: bool = False
    chunks: tuple[int, ...] = ()


class Spec:
    """The check of one bundle. `open_executor` makes one of so many threads over so many KV pages.

    `prompts` are ids by name. Executors stay open until `close`.
    """

    def __init__(
        self,
        geometry: Geometry,
        open_executor: Callable[[Threads, int], Executor],
        prompts: Mapping[str, Sequence[int]],
        options: Options,
    ) -> None:
        self._prompts, self._options = prompts, options
        self._geometry, self._open = geometry, open_executor
        most = geometry.context_length - options.tokens
        if most < 1:
            raise TandemError(f"--tokens {options.tokens} leaves no room for a prompt in {geometry.context_length}")
        self._lanes = min(MAX_LANES, geometry.max_lanes)
        sizes = lengths(geometry, most, quick=options.quick, chunks=options.chunks)
        self._pages = pages_for(
            max(text_tokens(geometry), sizes[-1] + options.tokens + MAX_TREE_ROWS), geometry.page_tokens, self._lanes
        )
        # One prompt per length: what the other lanes of a case are asked.
        self._beside = [(list(prompts)[i % len(prompts)], size) for i, size in enumerate(sizes)]
        self._executors: dict[Threads, Watch] = {}
        self._plain: dict[Ask, Recording] = {}
        levels = {
            "drafter": (*DRAFTERS, own) if (own := model_of(geometry)) else DRAFTERS,
            "shape": SHAPES,
            "prompt": tuple(prompts),
            "length": sizes,
            "lanes": tuple(range(1, self._lanes + 1)),
            "threads": options.threads,
            "chunk": tuple(sorted({geometry.max_rows, *(min(chunk, geometry.max_rows) for chunk in CHUNKS)})),
            "sampled": (False, True),
        }
        roomy = tuple(size for size in sizes if size + MAX_TREE_ROWS <= most)
        filling = {"drafter": SCRIPTED, "lanes": (1,), "length": roomy or sizes}
        self.cases = design(levels, all_widths(quick=options.quick), filling)

    def num_steps(self, only: int | None = None) -> int:
        """How often `run` says that it advances, near enough for a progress bar."""
        return len(self.cases) + PROOF_STEPS if only is None else 1

    def run(self, only: int | None = None, advance: Callable[[str], None] = lambda name: None) -> SpecReport:
        """All cases and the proof, or the case number `only`. `advance` hears each name, the proof's too."""
        report = SpecReport(self._options.tokens)
        for number, case in enumerate(self.cases):
            if only is None or number == only:
                advance(str(case))
                self._play(number, case, report)
        for executor in self._executors.values():
            report.passes.update(executor.passes)
        if only is None:
            executor = self._executor(self._options.threads[-1])
            report.proof = prove(Lab(executor, self._lanes, KEPT_BYTES), advance)
        return report

    def close(self) -> None:
        for executor in self._executors.values():
            executor.close()

    def _play(self, number: int, case: Case, report: SpecReport) -> None:
        asks = [Ask(case.prompt, case.length, case.sampled)]
        for lane in range(1, case.lanes):
            prompt, length = self._beside[(3 * number + 5 * lane) % len(self._beside)]
            asks.append(Ask(prompt, length, case.sampled ^ bool(lane % 2)))
        wanted = [self._answer(ask) for ask in asks]
        share = max(shares(case.width, case.lanes))
        # Guesses go on past the last id compared, so that drafts stay as wide as they should be.
        beyond = token_ids(MAX_TREE_ROWS, self._geometry.vocab_size, seed=number)
        answers = {recording.prompt: [*recording.ids, *beyond] for recording in wanted}
        drafters = forced_drafters(case.drafter, case.shape, share, answers, self._geometry.vocab_size)
        router = FixedWidth(case.width, case.shape)
        models = case.drafter in MODELS
        found = self._serve(asks, self._executor(case.threads), drafters, router, case.chunk, models=models)
        for lane, (one, other) in enumerate(zip(wanted, found, strict=True)):
            report.compare(number, case, lane, one, other)

    def _answer(self, ask: Ask) -> Recording:
        """The plain answer."""
        if ask not in self._plain:
            (recording,) = self._serve(
                [ask], self._executor(self._options.threads[0]), None, FixedWidth(1, "chain"), None
            )
            self._plain[ask] = recording
        return self._plain[ask]

    def _executor(self, threads: Threads) -> Watch:
        if threads not in self._executors:
            self._executors[threads] = Watch(self._open(threads, self._pages))
        return self._executors[threads]

    def _serve(
        self,
        asks: Sequence[Ask],
        executor: Watch,
        drafters: Callable[[], Drafter] | None,
        router: FixedWidth,
        chunk: int | None,
        *,
        models: bool = False,
    ) -> list[Recording]:
        engine = Engine(
            executor,
            drafters=drafters,
            models=models,
            prices=PriceModel(),
            router=router,
            max_lanes=len(asks),
            prefill_chunk=chunk,
        )
        recordings = []
        for number, ask in enumerate(asks):
            prompt = last(self._prompts[ask.prompt], ask.length)
            # Room for the widest draft, so that no round is cut short before the last id compared.
            room = min(self._options.tokens + MAX_TREE_ROWS, self._geometry.context_length - ask.length)
            recordings.append(Recording(executor, partial(router.lane_of, number), prompt, self._options.tokens))
            engine.submit(Request(prompt, room, SAMPLED if ask.sampled else Sampling()), recordings[-1])
        while engine.step():
            pass
        lost = next((r for r in recordings if r.reason not in (FinishReason.STOP, FinishReason.LENGTH)), None)
        if lost is not None:
            raise TandemError(f"an answer ended as {lost.reason} after {len(lost.ids)} ids; the log says why")
        return recordings
