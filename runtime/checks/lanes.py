"""Holds a bundle's engine to the promise: a request's tokens are those it has alone, whatever runs beside it.

A crowd of requests comes and goes in waves, through one engine a prefill size over one executor; what each is answered
alone is asked of the same executor first. Knows nothing of files.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tandem.artifacts.io import Geometry
from tandem.errors import TandemError, UsageError
from tandem.keys import MAX_TREE_ROWS
from tandem.prices import PriceModel
from tandem.runtime import meter
from tandem.runtime.checks.company import Company, Whims, mixed_drafters
from tandem.runtime.checks.crowd import MOST_TOKENS, Ask, chunks, draw_asks, draw_wave, lengths
from tandem.runtime.checks.guest import Guest, Plain, alone
from tandem.runtime.checks.lab import Lab, pages_for, token_ids
from tandem.runtime.checks.lanes_report import FLAT_BYTES, LanesReport
from tandem.runtime.checks.wave import Wave
from tandem.runtime.engine import Engine
from tandem.runtime.executor.base import Executor
from tandem.runtime.prefill import LEAST_ROWS
from tandem.runtime.request import FinishReason
from tandem.runtime.router.staircut import StairCut

MOST_LANES = 8
WAVE = 50
"""Requests of a wave, long enough that lanes are mostly full and short enough to be gone through again."""
WARM = 100
"""Requests after which memory is to be flat."""
MAX_QUEUE = 6
"""Requests that may wait behind the lanes, few enough that some find the queue full."""


@dataclass(frozen=True, slots=True)
class Options:
    """How many requests over how many lanes, all drawn from `seed`."""

    requests: int
    lanes: int
    seed: int = 0


def most_lanes(geometry: Geometry) -> int:
    """The most lanes that are checked of such a bundle."""
    return min(MOST_LANES, geometry.max_lanes, geometry.verify_rows, geometry.max_outputs)


class Lanes:
    """The check of one bundle. `open_executor` makes one over so many KV pages; it stays open until `close`.

    `prompts` are ids by name, `prices` the bundle's, which passes are said to take. The first requests of a run are
    those of every longer one.
    """

    def __init__(
        self,
        geometry: Geometry,
        open_executor: Callable[[int], Executor],
        prompts: Mapping[str, Sequence[int]],
        prices: Mapping[str, Any],
        options: Options,
    ) -> None:
        if not 1 <= options.lanes <= most_lanes(geometry):
            raise UsageError(f"--lanes is {options.lanes}; of this bundle 1 to {most_lanes(geometry)} are checked")
        self._geometry, self._options, self._prices = geometry, options, prices
        self._asks = draw_asks(prompts, geometry, options.seed)
        self._company = Company(open_executor(_pages(geometry, options.lanes)), prices)
        self._plain: dict[Ask, list[int]] = {}
        self._waves = -(-options.requests // WAVE)

    def num_steps(self) -> int:
        """How often `run` says that it advances."""
        return 1 + self._waves

    def run(self, advance: Callable[[str], None] = lambda name: None) -> LanesReport:
        """The whole crowd. `advance` hears the name of each part as it begins."""
        report = LanesReport(self._options.lanes)
        advance("each request alone")
        self._touch()
        self._answer_alone()
        report.distinct = len(self._plain)
        self._company.shared.clear()
        sizes = chunks(self._geometry)
        engines = [self._engine(chunk) for chunk in sizes]
        for number in range(self._waves):
            first, which = number * WAVE, number % len(sizes)
            advance(f"requests {first} to {first + WAVE - 1}")
            count = min(WAVE, self._options.requests - first)
            visits = draw_wave(self._asks, number, first, count, self._options.seed)
            share = self._least_share(sizes[which])
            guests = [Guest.of(visit, self._plain[visit.ask], share) for visit in visits]
            Wave(number, guests, engines[which], self._company, sizes[which], report).play()
            if first + count >= WARM and (held := own_bytes()) is not None:
                report.memory[first + count] = held
        report.shared.update(self._company.shared)
        report.mixed = sum(int(engine.meter.plain_rounds.values[meter.Plain.MIXED]) for engine in engines)
        if (report.growth or 0) > FLAT_BYTES:
            report.blame(self._options.requests - 1, f"memory grew by {report.growth:,} bytes behind the first {WARM}")
        return report

    def _least_share(self, chunk: int) -> int:
        """Rows of a pass that a prompt has at least, whatever stands beside it and whatever passes cost."""
        even = min(LEAST_ROWS, self._geometry.max_rows) // 4
        return max(1, min(chunk, even // self._options.lanes))

    def close(self) -> None:
        self._company.close()

    def _touch(self) -> None:
        """Writes all pages once: memory that a device's owner gives out on first use is not what may grow."""
        lanes, g = self._options.lanes, self._geometry
        lab = Lab(self._company, lanes)
        held = min(self._company.num_pages // lanes * g.page_tokens, g.context_length)
        for lane in range(lanes):
            lab.fill(lane, token_ids(held, g.vocab_size, seed=lane))

    def _answer_alone(self) -> None:
        """The plain answer to each ask: one lane, no drafts, the prompt in passes as large as can be."""
        prices = PriceModel(self._prices)
        engine = Engine(self._company, drafters=None, prices=prices, router=StairCut(prices), max_lanes=1)
        for ask in self._asks:
            if ask in self._plain:
                continue
            sink = Plain()
            engine.submit(alone(ask), sink)
            while engine.step():
                pass
            if sink.reason is not FinishReason.LENGTH:
                raise TandemError(f"{ask}: an answer ended as {sink.reason}; the log says why")
            self._plain[ask] = sink.ids

    def _engine(self, chunk: int) -> Engine:
        """An engine that serves with prefills of `chunk` rows, and guesses well and badly."""
        greedy = {ask.prompt: ids for ask, ids in self._plain.items() if ask.sampling.temperature == 0}
        every = {ask.prompt: ids for ask, ids in self._plain.items()}
        seed = f"{chunk} rows, seed {self._options.seed}"
        return Engine(
            self._company,
            drafters=mixed_drafters([greedy, every], self._geometry.vocab_size, seed),
            models=True,
            prices=PriceModel(self._prices),
            router=Whims(self._company, self._prices, seed),
            max_lanes=self._options.lanes,
            max_queue=MAX_QUEUE,
            prefill_chunk=chunk,
        )


def _pages(geometry: Geometry, lanes: int) -> int:
    """Pages for the longest request and short ones beside it: at times lanes have to wait for pages."""
    most = -(-(geometry.context_length + MAX_TREE_ROWS) // geometry.page_tokens)
    longest = min(most, pages_for(lengths(geometry)[-1] + MOST_TOKENS, geometry.page_tokens, 1))
    others = pages_for(geometry.page_tokens + MOST_TOKENS, geometry.page_tokens, lanes - 1)
    return lanes * -(-(longest + others) // lanes)


def own_bytes() -> int | None:
    """Resident bytes that are this process's own, mapped files left out; None where the system does not tell."""
    with contextlib.suppress(OSError):
        lines = Path("/proc/self/status").read_text().splitlines()
        return next((1024 * int(line.split()[1]) for line in lines if line.startswith("RssAnon:")), None)
    return None
