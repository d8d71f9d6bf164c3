"""Holds a bundle's sampling to its promise: seeded texts are one text, and tokens come as often as the model says.

Three parts over one executor: seeded answers under every drafter and shape beside neighbours, against plain ones;
answers with fresh noise, drafted for, whose tokens are placed in the model's own distributions; and many draws from one
row. Knows nothing of files.
"""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from tandem.artifacts.io import Geometry
from tandem.errors import TandemError
from tandem.keys import MAX_TREE_ROWS
from tandem.prices import PriceModel
from tandem.runtime.checks.design import DRAFTERS, MAX_LANES, SHAPES
from tandem.runtime.checks.expected import by_id, by_rank, distribution
from tandem.runtime.checks.forced import FixedWidth, forced_drafters, shares
from tandem.runtime.checks.goodness import fit
from tandem.runtime.checks.guest import Plain
from tandem.runtime.checks.lab import KEPT_BYTES, Lab, pages_for, token_ids
from tandem.runtime.checks.manners import MANNERS, Manner
from tandem.runtime.checks.prompts import last
from tandem.runtime.checks.sampled_report import SampledReport, Texts
from tandem.runtime.checks.trials import CELLS, PAIR_CELLS, Trial, even, pairs_of, singles_of
from tandem.runtime.checks.watch import HostDraws
from tandem.runtime.drafters.base import Drafter
from tandem.runtime.engine import Engine
from tandem.runtime.executor.base import Executor
from tandem.runtime.penalties import PenalizedText
from tandem.runtime.request import Request
from tandem.runtime.sampling import draw

PROMPT_IDS = 24
ANSWER_IDS = 32
WIDTH = 12
"""Rows of a round over all lanes, fewer than lanes could fill: drafts of several nodes, and cheap."""
UNLIKELY = 50.0
"""Nats of an answer that does not come twice."""

Told = tuple[tuple[int, ...], tuple[int, ...]]
"""A prompt and what was answered."""


@dataclass(frozen=True, slots=True)
class Options:
    """`tokens` with fresh noise are placed in each manner, `draws` are made from each row. `quick` takes half of the
    drafters and shapes for seeded answers."""

    tokens: int = 1500
    draws: int = 10_000
    quick: bool = False


class Sampled:
    """The check of one bundle. `open_executor` makes one over so many KV pages; it stays open until `close`.

    `prompts` are ids by name.
    """

    def __init__(
        self,
        geometry: Geometry,
        open_executor: Callable[[int], Executor],
        prompts: Mapping[str, Sequence[int]],
        options: Options,
    ) -> None:
        self._options, self._vocab_size = options, geometry.vocab_size
        self._lanes = min(MAX_LANES, geometry.max_lanes, geometry.max_outputs)
        room = geometry.context_length - ANSWER_IDS
        if room < 1:
            raise TandemError(f"a context of {geometry.context_length} holds no answer of {ANSWER_IDS} tokens")
        self._prompts = {name: last(ids, min(PROMPT_IDS, room)) for name, ids in prompts.items()}
        pages = pages_for(min(PROMPT_IDS, room) + ANSWER_IDS + MAX_TREE_ROWS, geometry.page_tokens, self._lanes)
        self._executor = open_executor(pages)
        self._host = HostDraws(self._executor)
        self._plain: dict[tuple[tuple[int, ...], str], list[int]] = {}

    def num_steps(self) -> int:
        """How often `run` says that it advances."""
        return sum(len(self._sorts(number)) + 1 + len(self._prompts) for number in range(len(MANNERS)))

    def run(self, advance: Callable[[str], None] = lambda name: None) -> SampledReport:
        """All three parts. `advance` hears the name of each step as it begins."""
        report = SampledReport()
        for number, manner in enumerate(MANNERS):
            seeded = replace(manner, sampling=replace(manner.sampling, seed=2026 + number))
            for drafter, shape in self._sorts(number):
                advance(f"seeded, {manner.name}: {drafter}, {shape}")
                self._compare(seeded, drafter, shape, report)
            advance(f"fresh noise, {manner.name}")
            self._place(manner, report)
            for which, (name, prompt) in enumerate(self._prompts.items()):
                advance(f"draws, {manner.name}: {name}")
                first = (number * len(self._prompts) + which) * self._options.draws
                report.trials += self._count(manner, name, prompt, first, by_seed=which % 2 == 0)
        return report

    def close(self) -> None:
        self._executor.close()

    def _sorts(self, number: int) -> list[tuple[str, str]]:
        """Drafters and shapes for seeded answers in the manner of that number."""
        every = list(itertools.product(DRAFTERS, SHAPES))
        return every[number % 2 :: 2] if self._options.quick else every

    def _waves(self) -> Iterator[list[tuple[int, ...]]]:
        """Prompts for all lanes at once, each of them once."""
        found = list(self._prompts.values())
        for begin in range(0, len(found), self._lanes):
            yield found[begin : begin + self._lanes]

    def _compare(self, manner: Manner, drafter: str, shape: str, report: SampledReport) -> None:
        """Seeded answers beside each other, drafted for, against what each is alone, plainly, and drawn by the host."""
        tally = report.texts.setdefault((drafter, shape), Texts())
        for wave in self._waves():
            for prompt in wave:
                if (prompt, manner.name) not in self._plain:
                    (alone,) = self._serve([prompt], manner, None, FixedWidth(1, shape), self._host)
                    self._plain[prompt, manner.name] = alone.ids
            plain = {prompt: self._plain[prompt, manner.name] for prompt in wave}
            make = self._drafters(drafter, shape, plain, len(wave))
            for prompt, found in zip(wave, self._serve(wave, manner, make, FixedWidth(WIDTH, shape)), strict=True):
                wanted = plain[prompt]
                astray = [i for i, token in enumerate(wanted) if found.ids[i : i + 1] != [token]]
                tally.answers += 1
                tally.tokens += len(found.ids)
                tally.rounds += found.rounds
                tally.differing_ids += len(astray)
                if astray and report.astray is None:
                    name = next(name for name, ids in self._prompts.items() if ids == prompt)
                    report.astray = f"{manner.name}, drafter {drafter}, {shape}, '{name}': id {astray[0]} of the answer"

    def _drafters(
        self, name: str, shape: str, answers: Mapping[tuple[int, ...], list[int]], lanes: int
    ) -> Callable[[], Drafter] | None:
        # Guesses go on past the last id, so that drafts stay as wide as they should be.
        beyond = token_ids(MAX_TREE_ROWS, self._vocab_size, seed=len(name))
        known = {prompt: [*ids, *beyond] for prompt, ids in answers.items()}
        return forced_drafters(name, shape, max(shares(WIDTH, lanes)), known, self._vocab_size)

    def _serve(
        self,
        wave: Sequence[tuple[int, ...]],
        manner: Manner,
        make: Callable[[], Drafter] | None,
        router: FixedWidth,
        executor: Executor | None = None,
    ) -> list[Plain]:
        """The answers to `wave`, served together."""
        executor = executor or self._executor
        engine = Engine(executor, drafters=make, prices=PriceModel(), router=router, max_lanes=self._lanes)
        sinks = [Plain() for _ in wave]
        for prompt, sink in zip(wave, sinks, strict=True):
            engine.submit(Request(prompt, ANSWER_IDS, manner.sampling, penalties=manner.penalties), sink)
        while engine.step():
            pass
        for sink in sinks:
            if len(sink.ids) != ANSWER_IDS:
                raise TandemError(f"{manner.name}: an answer ended as {sink.reason}; the log says why")
        return sinks

    def _place(self, manner: Manner, report: SampledReport) -> None:
        """Answers with fresh noise and drafts of every sort; each token's place in its own distribution is uniform."""
        singles, pairs = np.zeros(CELLS, np.int64), np.zeros(PAIR_CELLS**2, np.int64)
        chance, lab, outside, told = random.Random(), Lab(self._executor, self._lanes, KEPT_BYTES), 0, set[Told]()
        for number, (prompt, answer) in enumerate(self._fresh(manner)):
            ranks, places, surprise = list[float](), list[float](), 0.0
            for i, logits in enumerate(self._rows(lab, prompt, answer)):
                wanted = distribution(logits, manner.sampling, manner.penalties, prompt, answer[:i])
                own = float(wanted[answer[i]])
                outside += own == 0
                surprise -= math.log(own) if own else -math.inf
                ranks.append(by_rank(wanted, answer[i], chance.random()))
                places.append(by_id(wanted, answer[i], chance.random()))
            report.repeated += surprise > UNLIKELY and (prompt, answer) in told
            told.add((prompt, answer))
            singles += singles_of(ranks)
            pairs += pairs_of(places[number % 2 :])
        report.trials.append(even("tokens served", "all", manner.name, singles, int(outside)))
        report.trials.append(even("neighbours served", "all", manner.name, pairs))

    def _fresh(self, manner: Manner) -> Iterator[Told]:
        """Prompts and answers without a seed; what was answered last is guessed next, and some of it comes again."""
        sorts, num_tokens = itertools.cycle(itertools.product(DRAFTERS, SHAPES)), 0
        guessed = {prompt: self._plain[prompt, manner.name] for prompt in self._prompts.values()}
        while num_tokens < self._options.tokens:
            for wave in self._waves():
                drafter, shape = next(sorts)
                make = self._drafters(drafter, shape, {prompt: guessed[prompt] for prompt in wave}, len(wave))
                for prompt, found in zip(wave, self._serve(wave, manner, make, FixedWidth(WIDTH, shape)), strict=True):
                    guessed[prompt] = found.ids
                    num_tokens += len(found.ids)
                    yield prompt, tuple(found.ids)

    def _rows(self, lab: Lab, prompt: tuple[int, ...], answer: Sequence[int]) -> Iterator[np.ndarray]:
        """Logits of the row that each id of `answer` was drawn from, by passes of their own."""
        lab.fill(0, prompt[:-1])
        ids, start = [prompt[-1], *answer[:-1]], len(prompt) - 1
        step = min(self._executor.geometry.max_outputs, self._executor.geometry.max_rows)
        for begin in range(0, len(ids), step):
            part = ids[begin : begin + step]
            lab.extend(0, part, start + begin, num_outputs=len(part))
            yield from [self._executor.logits(i).copy() for i in range(len(part))]

    def _count(self, manner: Manner, name: str, prompt: tuple[int, ...], first: int, *, by_seed: bool) -> list[Trial]:
        """Draws behind one prompt, by seeds that follow each other from `first` on, or by positions under that seed."""
        (logits,) = self._rows(Lab(self._executor, self._lanes, KEPT_BYTES), prompt, [0])
        wanted = distribution(logits, manner.sampling, manner.penalties, prompt, ())
        row = PenalizedText(manner.penalties, prompt, ()).applied(logits)
        count, start = self._options.draws, len(prompt)
        keys = ((first + i, start) if by_seed else (first, start + i) for i in range(count))
        drawn = np.array([draw(row, manner.sampling, *key) for key in keys])
        counts, edges, chance = np.bincount(drawn, minlength=len(row)), np.cumsum(wanted), random.Random()
        places = [float(edges[token] - chance.random() * wanted[token]) for token in drawn]
        kind, outside = "seed" if by_seed else "position", int(counts[wanted == 0].sum())
        found = Trial(f"draws by {kind}", name, manner.name, count, fit(counts, wanted), outside)
        return [found, even(f"neighbours by {kind}", name, manner.name, pairs_of(places))]
