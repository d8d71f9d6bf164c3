"""Passes of an opened bundle, timed as the engine would see them: steps, verifies, chunks of a prompt, whole answers.

Tokens are random and really lie in the cache, so that attention reads what it would. A recurrent state is that of the
last tokens that were kept, wherever they stood: what it costs does not depend on what it holds. Imports no framework.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from spread import Spread
from tandem.keys import Kind
from tandem.prices import PriceModel
from tandem.runtime.checks.lab import slots_for, token_ids
from tandem.runtime.engine import Engine
from tandem.runtime.executor.base import Executor, Wishes
from tandem.runtime.meter import Meter
from tandem.runtime.penalties import PenalizedText
from tandem.runtime.request import Penalties, Request, Sampling
from tandem.runtime.rows import Span, commit_moves, extend_rows, step_rows, verify_rows
from tandem.runtime.wish_row import wish_row
from tandem.tree import DraftTree
from tandem.wish import Wish

SEED = 20_261_129


class Passes:
    """One lane over `executor`, as long as its pages allow."""

    def __init__(self, executor: Executor) -> None:
        g = executor.geometry
        self.executor, self.geometry = executor, g
        self.most = min(g.context_length, executor.num_pages * g.page_tokens - g.page_tokens)
        self._slots = slots_for(executor, 1)
        self._table = np.zeros((1, g.blocks_per_lane), np.int32)
        held = min(executor.num_pages, g.blocks_per_lane)
        # In an order of their own: a cache that lay in one piece would be easier to read than any real one.
        self._table[0, :held] = np.random.default_rng(SEED).permutation(executor.num_pages)[:held]
        self._ids = token_ids(g.context_length, g.vocab_size, SEED)
        self._filled = 0

    def fill(self, length: int) -> None:
        """Prefills up to `length` tokens. ValueError for more than there is room for."""
        if length > self.most:
            raise ValueError(f"{length} tokens of context are wanted and the pages hold {self.most}")
        while self._filled < length:
            count = min(self.geometry.max_rows, length - self._filled)
            self.extend(count, self._filled)
            self._filled += count

    def forget(self) -> None:
        """The pages are for others now: the next `fill` begins anew."""
        self._filled = 0

    def extend(self, count: int, start: int) -> float:
        """Milliseconds of a pass that keeps `count` tokens behind `start` others; logits of the last alone."""
        rows = extend_rows([Span(0, start, self._ids[start : start + count], outputs=1)], self._table, self._slots)
        return self.executor.run(Kind.EXTEND, rows).ms

    def step(self, context: int) -> float:
        """Milliseconds of a plain step behind `context` tokens."""
        rows = step_rows([0], [context], [self._ids[context]], self._table, self._slots)
        return self.executor.run(Kind.EXTEND, rows).ms

    def verify(self, kind: Kind, num_rows: int, context: int) -> float:
        """Milliseconds of a verify of `num_rows` rows behind `context` tokens."""
        tree = chain(self._ids[:num_rows]) if kind is Kind.VERIFY_CHAIN else bushy(self._ids[:num_rows])
        return self.executor.run(kind, verify_rows(kind, [0], [context], [tree], self._table, self._slots)).ms

    def draw(self, num_rows: int, context: int, sampling: Sampling, penalties: Penalties | None = None) -> float:
        """Milliseconds of a chain's verify of `num_rows` rows behind `context` tokens, each drawn on the device."""
        vocab_size, path = self.geometry.vocab_size, self._ids[:num_rows]
        rows = verify_rows(Kind.VERIFY_CHAIN, [0], [context], [chain(path)], self._table, self._slots)
        wish = wish_row(0, sampling, penalties, SEED, vocab_size)
        table = np.tile(wish, (num_rows, 1))
        table[:, Wish.POSITION] = range(context + 1, context + 1 + num_rows)
        text = PenalizedText(penalties or Penalties(presence=1.0), self._ids[: context + 1], ())
        wishes = Wishes(table, [path[1 : i + 1] for i in range(num_rows)], [(0, text.seen(vocab_size))])
        rows.wishes = lambda: wishes
        return self.executor.run(Kind.VERIFY_CHAIN, rows).ms

    def commit(self, num_rows: int, context: int) -> float:
        """Milliseconds of a commit of the longest path of the last `verify`, a tree of `num_rows` rows."""
        tree = bushy(self._ids[:num_rows])
        depths = tree.depths()
        path = tree.path(depths.index(max(depths)))
        return self.executor.commit(commit_moves([0], [context], [tree], [path], self._table, self._slots))


def chain(ids: list[int]) -> DraftTree:
    return DraftTree.chain(ids[0], ids[1:], [1.0] * (len(ids) - 1), "bench")


def bushy(ids: list[int]) -> DraftTree:
    """A tree that goes down two times of three and branches off the path to its last node otherwise."""
    tree, choice = DraftTree.root(ids[0]), np.random.default_rng(SEED)
    for node, token in enumerate(ids[1:], 1):
        path = tree.path(node - 1)
        parent = node - 1 if choice.random() < 2 / 3 else int(choice.choice(path))
        tree.tokens.append(token)
        tree.parents.append(parent)
        tree.scores.append(1.0)
        tree.sources.append("bench")
    return tree


def interleaved(sides: Mapping[str, Callable[[], float]], repeats: int) -> dict[str, Spread]:
    """What each side returns, turn by turn, so that a slow moment falls on all alike; a first turn does not count."""
    taken: dict[str, list[float]] = {name: [] for name in sides}
    for turn in range(repeats + 1):
        for name, play in sides.items():
            found = play()
            if turn:
                taken[name].append(found)
    return {name: Spread.of(runs) for name, runs in taken.items()}


@dataclass
class Answer:
    """A `Sink` that counts; `meter` is that of the engine that serves it alone."""

    meter: Meter
    ids: list[int] = field(default_factory=list)
    stats: Any = None

    def tokens(self, ids: list[int]) -> bool:
        self.ids += ids
        return False

    def finished(self, reason: Any, stats: Any, error: Exception | None) -> None:
        if error:
            raise error
        self.stats = stats

    @property
    def ms(self) -> float:
        """Milliseconds a token; the first came out of the prefill."""
        return self.stats.decode_ms / max(1, len(self.ids) - 1)


def answer(
    executor: Executor,
    prices: dict[str, Any],
    context: int,
    tokens: int,
    sampling: Sampling = Sampling(),  # noqa: B008
    penalties: Penalties = Penalties(),  # noqa: B008
    **drafting: Any,
) -> Answer:
    """An answer of `tokens` behind `prompt(executor, context)`, through the engine's own rounds.

    It is plain, unless arguments of `Engine` have it drafted.
    """
    engine = Engine(executor, **{"drafters": None, **drafting}, prices=PriceModel(prices), max_lanes=1)
    found = Answer(engine.meter)
    engine.submit(Request(prompt(executor, context), tokens, sampling, penalties=penalties), found)
    while engine.step():
        pass
    return found


def prompt(executor: Executor, context: int) -> tuple[int, ...]:
    """What answers stand behind: `context` random ids."""
    return tuple(token_ids(context, executor.geometry.vocab_size, SEED))


def opened(path: Path, context: int) -> tuple[Any, Executor]:
    """The bundle at `path`, and an executor that holds one lane of `context` tokens and some room."""
    from tandem.artifacts.reader import open_bundle
    from tandem.runtime import loading

    bundle = open_bundle(path, trust_native=True)
    g = bundle.geometry
    pages = -(-min(context, g.context_length) // g.page_tokens) + 2
    return bundle, loading.open_executor(bundle, threads=None, num_pages=pages)
