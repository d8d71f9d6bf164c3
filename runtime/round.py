"""The round loop: draft, verify, accept, commit, for all decoding lanes in one pass.

Knows nothing of how guesses are made, how passes run, or where tokens go.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from itertools import accumulate
from time import perf_counter
from typing import Protocol

import numpy as np

from tandem.keys import Kind
from tandem.runtime.acceptance import Accept, pick, walk
from tandem.runtime.drafters.group import DraftGroup
from tandem.runtime.draws import Draws
from tandem.runtime.executor.base import Executor
from tandem.runtime.lane import Lane
from tandem.runtime.meter import ROUNDS, Meter, Plain
from tandem.runtime.pages import PageTable
from tandem.runtime.relaxed import Relaxation
from tandem.runtime.rows import commit_moves, step_rows, verify_kind, verify_rows
from tandem.runtime.slots import StateSlots
from tandem.runtime.steps import Steps, max_joint_rows
from tandem.tree import DraftTree


class Router(Protocol):
    """Picks one tree per lane; none at all, or roots alone, are a plain step. `lanes` are numbers of opened lanes.

    Before copies are looked for in a lane, `rests` says for how many rounds that is to be left. A round with candidates
    calls `choose`, and `settle` with what its lanes committed; another that asked for some calls `passed`. Both hear ms
    of wall time: the whole round's, of it what went into finding copies and choosing, and the host's part behind that,
    outside passes. Before a drafter is asked that costs a pass, `wants_model` hears what the others propose; `choose`
    then hears what each one asked took. Such a drafter that has rows to read first is worth it only where `turn_pays`.
    """

    def open(self, lane: int) -> None: ...

    def turn_pays(self, context: int, backlog: int, num_tokens: float, sync_ms: float) -> bool: ...

    def rests(self, lane: int, context: int) -> int: ...

    def wants_model(
        self, candidates: list[list[DraftTree]], contexts: list[int], max_rows: int, lanes: list[int], source: str
    ) -> bool: ...

    def choose(
        self,
        candidates: list[list[DraftTree]],
        contexts: list[int],
        max_rows: int,
        lanes: list[int],
        draft_ms: Mapping[str, float] | None = None,
    ) -> list[DraftTree]: ...

    def settle(self, committed: list[list[int]], ms: float, asked_ms: float, host_ms: float) -> None: ...

    def passed(self, lanes: list[int], contexts: list[int], ms: float, asked_ms: float, host_ms: float) -> None: ...

    def close(self, lane: int) -> None: ...


class Prices(Protocol):
    """Knows what passes cost, and learns it."""

    def ms(self, context: int, kind: Kind, rows: int) -> float: ...

    def observe(self, context: int, kind: Kind, rows: int, ms: float) -> None: ...


class Rounds:
    """Plays rounds over one executor whose lanes' pages stand in `pages` and their recurrent states in `slots`.

    `models` drafts for lanes that it was opened for.
    """

    def __init__(
        self,
        executor: Executor,
        pages: PageTable,
        slots: StateSlots,
        *,
        router: Router,
        prices: Prices,
        meter: Meter,
        models: DraftGroup | None = None,
        relaxation: Relaxation | None = None,
    ) -> None:
        self._executor, self._pages, self._slots = executor, pages, slots
        self._models, self._run = models, models.run if models else executor.run
        self._router, self._prices, self._meter = router, prices, meter
        self._relaxation = relaxation
        vocab_size, draws = executor.geometry.vocab_size, executor.geometry.draws
        self._draws = Draws(vocab_size, greedy=relaxation is None) if draws else None
        self.steps = Steps(executor, self._run, meter, self._draws)
        self._max_rows = max_joint_rows(executor)
        self._pass_ms = 0.0  # of the round at hand
        self._settle_ms = 0.0  # that the router took behind the last round

    def play(self, lanes: Sequence[Lane]) -> None:
        """One round of `lanes`, all decoding and at most `max_joint_rows`. Each commits at least one token."""
        began = perf_counter()
        indices, starts = [lane.index for lane in lanes], [lane.kv_length for lane in lanes]
        candidates, looking = self._look(lanes)
        looked = perf_counter()
        draft_ms = self._ask_model(lanes, indices, starts, candidates)
        asked = perf_counter()
        drafted = any(candidates) or bool(draft_ms)  # what was asked for nothing has cost time too
        trees = self._router.choose(candidates, starts, self._max_rows, indices, draft_ms) if drafted else []
        chosen = perf_counter()
        if trees and any(tree.num_drafted for tree in trees):
            committed = self._verify(lanes, indices, starts, trees)
        else:
            committed = self._step(lanes, indices, starts)
        settling = perf_counter()
        ms = (settling - began) * 1e3 + self._settle_ms
        asked_ms = (looked - began + chosen - asked) * 1e3 + self._settle_ms
        host_ms = max(0.0, (settling - chosen) * 1e3 - self._pass_ms)
        if drafted:
            self._router.settle(committed, ms, asked_ms, host_ms)
        else:
            if looking or self._models:
                self._router.passed(indices, starts, ms, asked_ms, host_ms)
            self._meter.plain_rounds.add(Plain.NO_GUESS if looking else _why_silent(lanes))
        self._settle_ms = (perf_counter() - settling) * 1e3
        for lane, tokens in zip(lanes, committed, strict=True):
            lane.deliver(tokens)
        elapsed = (perf_counter() - began) * 1e3
        for lane in lanes:
            lane.stats.decode_ms += elapsed

    def _look(self, lanes: Sequence[Lane]) -> tuple[list[list[DraftTree]], bool]:
        """What copies propose in each lane that does not rest, and whether there is one."""
        most, vocab_size = self._max_rows - len(lanes), self._executor.geometry.vocab_size
        candidates, looking = list[list[DraftTree]](), False
        for lane in lanes:
            if not lane.rest and lane.drafter is not None:
                lane.rest = self._router.rests(lane.index, lane.kv_length)
            if rests := lane.rest > 0:
                lane.rest -= 1
            looking = looking or (lane.drafts and not rests)
            candidates.append(lane.propose(most, vocab_size, look=not rests))
        return candidates, looking

    def _ask_model(
        self, lanes: Sequence[Lane], indices: list[int], starts: list[int], candidates: list[list[DraftTree]]
    ) -> dict[str, float]:
        """Adds what a model drafts to `candidates`, where lanes have one and it is worth asking; ms by source."""
        if self._models is None or not (seats := self._models.seats(lanes, most := self._max_rows - len(lanes))):
            return {}
        if not self._router.wants_model(candidates, starts, self._max_rows, indices, self._models.source):
            return {}
        began, vocab_size = perf_counter(), self._executor.geometry.vocab_size
        self._models.draft(seats, len(lanes))
        for lane, trees in zip(lanes, candidates, strict=True):
            trees += lane.propose(most, vocab_size, by_model=True)
        return {self._models.source: (perf_counter() - began) * 1e3}

    def _step(self, lanes: Sequence[Lane], indices: Sequence[int], starts: Sequence[int]) -> list[list[int]]:
        """One plain pass over the anchors; what each lane committed. Most rounds are this: it touches little."""
        anchors = [lane.ids[-1] for lane in lanes]
        rows = step_rows(indices, starts, anchors, self._pages.table, self._slots.table)
        outcome = self.steps.run(rows, lanes)
        self._pass_ms = outcome.ms
        self._prices.observe(max(starts), Kind.EXTEND, len(lanes), outcome.ms)
        return self.steps.commit(lanes, outcome)

    def _verify(
        self, lanes: Sequence[Lane], indices: Sequence[int], starts: Sequence[int], chosen: Sequence[DraftTree]
    ) -> list[list[int]]:
        """One pass over a tree per lane, then a commit of the accepted paths; what each lane committed."""
        trees = [
            tree if tree.num_drafted else DraftTree.root(lane.ids[-1]) for lane, tree in zip(lanes, chosen, strict=True)
        ]
        kind, table, slots = verify_kind(trees), self._pages.table, self._slots.table
        rows = verify_rows(kind, indices, starts, trees, table, slots)
        if self._draws is not None:
            rows.wishes = partial(self._draws.wishes, lanes, trees)
        outcome = self._run(kind, rows)
        self._pass_ms = outcome.ms
        context, num_rows = max(starts), sum(map(len, trees))
        self._meter.priced.add(kind, self._prices.ms(context, kind, num_rows) / 1e3)
        self._meter.took.add(kind, outcome.ms / 1e3)
        self._prices.observe(context, kind, num_rows, outcome.ms)
        self._meter.rounds.add(ROUNDS[kind])
        firsts = list(accumulate(map(len, trees), initial=0))[:-1]
        walks = [
            walk(tree, partial(pick, lane, self._executor, outcome, first, accept=self._accept(tree)), lane.stop_ids)
            for lane, tree, first in zip(lanes, trees, firsts, strict=True)
        ]
        if slots or kind is Kind.VERIFY_TREE:  # a chain's KV lies where it belongs, a state does not
            moves = commit_moves(indices, starts, trees, [path for path, _ in walks], table, slots)
            if moves.lane:
                ms = self._executor.commit(moves)
                self._pass_ms += ms
                self._prices.observe(max(starts), Kind.COMMIT, len(moves.lane), ms)
        for lane, tree, first, (path, tokens) in zip(lanes, trees, firsts, walks, strict=True):
            lane.commit(tokens, len(path), tree.num_drafted)
            if tree.num_drafted:
                self._meter.verified(tree, path)
            lane.inform([first + node for node in path], tokens)
        return [tokens for _, tokens in walks]

    def _accept(self, tree: DraftTree) -> Accept | None:
        """What the relaxed rule makes of rows of `tree`; None where there is no such rule, so that texts are exact."""
        rule = self._relaxation
        if rule is None:
            return None

        def accept(logits: np.ndarray, own: int, node: int) -> int:
            token = rule.choice(logits, own, [tree.tokens[child] for child in tree.children(node)])
            self._meter.relaxed.add(token != own)
            return token

        return accept


def _why_silent(lanes: Sequence[Lane]) -> Plain:
    """Why nobody was asked for guesses."""
    return Plain.RESTS if any(lane.drafts for lane in lanes) else Plain.OFF
