"""One arithmetic, whatever came before: random passes over eight lanes against one-token steps of the same ids."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import HealthCheck, settings
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from tandem.keys import MAX_TREE_ROWS, Kind
from tandem.runtime.checks.lab import digest, token_ids
from tandem.runtime.executor.base import Rows
from tandem.runtime.pages import PageTable
from tandem.runtime.rows import Span, commit_moves, extend_rows, verify_rows
from tandem.runtime.slots import StateSlots
from tandem.tree import DraftTree
from tests.compile.models import oracle
from tests.staged import Lane, Staged, stage
from tests.tiny import VOCAB_SIZE, make_checkpoint

NUM_LANES, CONTEXT, MAX_ROWS = 8, 224, 96
NUM_PAGES = NUM_LANES * 4
TEXTS = [token_ids(CONTEXT, VOCAB_SIZE, seed) for seed in range(3)]
MODELS = [
    *(("llama", "bf16"), ("smollm2", "fp32"), ("mistral", "bf16"), ("qwen2", "fp32"), ("qwen3", "bf16")),
    *(("qwen2", "int8"), ("llama", "int4"), ("qwen3", "int4")),
    *(("qwen3_5", "bf16"), ("qwen3_5-tied", "fp32"), ("qwen3_5-odd", "bf16")),
]
"""Head dims 16, 16, 16, 8 and 20; one, two, five, three and two key-value heads; then hybrids."""

lane_numbers = st.integers(0, NUM_LANES - 1)
sizes = st.one_of(st.integers(1, 5), st.sampled_from([16, 31, 32, 33, 61, 62, 63, 64, 65, 96]), st.integers(1, 96))
keeps = st.one_of(st.none(), st.integers(0, MAX_TREE_ROWS - 1), st.just(MAX_TREE_ROWS - 1))
climbs = st.one_of(st.integers(0, 31).map(lambda n: [1] * n), st.lists(st.integers(1, 6), min_size=4, max_size=31))
"""Shapes of trees: node i hangs that many places up the path of node i - 1."""


class Steps:
    """What one-token steps on one thread give: digests of logits and of K and V by token prefix."""

    def __init__(self, staged: Staged) -> None:
        executor = staged.executor(threads=1, num_pages=4 * len(TEXTS))
        self._lanes = [Lane(executor, range(4 * i, 4 * i + 4), slot=i) for i in range(len(TEXTS))]
        self._held = [list[int]() for _ in TEXTS]
        self._logits: dict[bytes, str] = {}
        self._states: dict[bytes, str] = {}

    def logits(self, ids: Sequence[int]) -> str:
        """After the last of `ids`."""
        key = _key(ids)
        if key not in self._logits:
            self._walk(ids)
        return self._logits[key]

    def state(self, ids: Sequence[int]) -> str:
        key = _key(ids)
        if key not in self._states:
            self._states[key] = digest(self._walk(ids).state())
        return self._states[key]

    def _walk(self, ids: Sequence[int]) -> Lane:
        """In the lane that shares most with `ids`, from the last token that it shares, whose step runs again."""
        shared = [_common(held, ids) for held in self._held]
        which = max(range(len(shared)), key=lambda i: (shared[i], -len(self._held[i])))
        lane, self._held[which] = self._lanes[which], list(ids)
        lane.length = max(0, shared[which] - 1)
        for end in range(lane.length, len(ids)):
            (found,) = lane.extend(ids[end : end + 1])
            assert np.isfinite(found).all()
            self._logits[_key(ids[: end + 1])] = digest(found.tobytes())
        return lane


def _common(some: Sequence[int], others: Sequence[int]) -> int:
    """How many ids both begin with."""
    return next((i for i, (a, b) in enumerate(zip(some, others, strict=False)) if a != b), min(len(some), len(others)))


def _key(ids: Sequence[int]) -> bytes:
    return np.array(ids, np.int16).tobytes()


class Passes(RuleBasedStateMachine):
    """Lanes by number with their ids. A lane takes pages when it starts; `release` hands them to whoever comes next."""

    def __init__(self, staged: Staged, steps: Steps) -> None:
        super().__init__()
        self.staged, self.steps = staged, steps
        g = staged.composer.geometry
        self.pages = PageTable(NUM_PAGES, g.page_tokens, NUM_LANES, g.blocks_per_lane)
        self.slots = StateSlots(NUM_LANES if g.recurrent_layers else 0, NUM_LANES)
        self.texts: dict[int, list[int]] = {}

    def teardown(self) -> None:
        self.executor.close()

    @initialize(
        threads=st.integers(1, 3),
        sizes=st.lists(st.integers(1, MAX_ROWS) | st.integers(60, 68), min_size=1, max_size=NUM_LANES),
    )
    def begin(self, threads: int, sizes: list[int]) -> None:
        self.executor = self.staged.executor(threads=threads, num_pages=NUM_PAGES)
        for lane, size in enumerate(sizes):
            self._extend([Span(lane, 0, TEXTS[lane % len(TEXTS)][:size], outputs=1)])

    @rule(chunks=st.dictionaries(lane_numbers, st.tuples(sizes, st.sampled_from(TEXTS)), min_size=1))
    def extend(self, chunks: dict[int, tuple[int, list[int]]]) -> None:
        spans, left = [], MAX_ROWS
        for lane, (size, text) in chunks.items():
            start = len(self.texts.get(lane, []))
            if tokens := text[start : start + min(size, left)]:
                spans.append(Span(lane, start, tokens, outputs=1))
                left -= len(tokens)
        if spans:
            self._extend(spans)

    @precondition(lambda self: self.texts)
    @rule(
        guesses=st.lists(st.tuples(lane_numbers, climbs, keeps), min_size=1),
        seed=st.integers(0, 3),
        branch=st.booleans(),
    )
    def verify(self, guesses: list[tuple[int, list[int], int | None]], seed: int, branch: bool) -> None:
        """A joint pass; each lane commits the path to a node, or abandons its tree."""
        lanes: list[int] = []
        trees: list[DraftTree] = []
        keep: dict[int, int] = {}
        for number, shape, last in guesses:
            lane = sorted(self.texts)[number % len(self.texts)]
            room = min(MAX_TREE_ROWS - sum(map(len, trees)), CONTEXT - len(self.texts[lane]))
            if lane in lanes or not room:
                continue
            lanes.append(lane)
            trees.append(_tree(shape[: room - 1], seed + lane))
            if last is not None:
                keep[lane] = last
        if not lanes:
            return
        kind = Kind.VERIFY_CHAIN if all(tree.is_chain for tree in trees) and not branch else Kind.VERIFY_TREE
        starts = [len(self.texts[lane]) for lane in lanes]
        wanted = [
            [*self.texts[lane], *(tree.tokens[i] for i in tree.path(node))]
            for lane, tree in zip(lanes, trees, strict=True)
            for node in range(len(tree))
        ]
        self._run(kind, verify_rows(kind, lanes, starts, trees, self.pages.table, self.slots.table), wanted)
        paths = [
            tree.path(keep[lane] % len(tree)) if lane in keep else [] for lane, tree in zip(lanes, trees, strict=True)
        ]
        moves = commit_moves(lanes, starts, trees, paths, self.pages.table, self.slots.table)
        if moves.lane:
            self.executor.commit(moves)
        for lane, tree, path in zip(lanes, trees, paths, strict=True):
            self.texts[lane].extend(tree.tokens[i] for i in path)

    @precondition(lambda self: len(self.texts) > 1)
    @rule(number=lane_numbers)
    def release(self, number: int) -> None:
        lane = sorted(self.texts)[number % len(self.texts)]
        del self.texts[lane]
        self.pages.release(lane)
        self.slots.release(lane)

    @invariant()
    def every_lane_is_as_its_ids_say(self) -> None:
        for lane, ids in self.texts.items():
            held = self.executor.kv(self.pages.pages(lane), len(ids))
            if self.slots.table:
                held += self.executor.save(self.slots.table[lane], len(ids)).state.tobytes()
            assert digest(held) == self.steps.state(ids), f"state of lane {lane}, {len(ids)} tokens"

    def _extend(self, spans: Sequence[Span]) -> None:
        for span in spans:
            assert self.pages.reserve(span.lane, CONTEXT + MAX_TREE_ROWS)
            if span.lane not in self.texts:
                self.texts[span.lane] = []
                self.slots.take(span.lane)
        rows = extend_rows(spans, self.pages.table, self.slots.table)
        wanted = [[*self.texts[span.lane], *span.tokens[: i + 1]] for span in spans for i in range(len(span.tokens))]
        # As many logits as a pass gives back: the last rows', and each lane's last.
        last = set(rows.output_row)
        others = [row for row in range(len(wanted)) if row not in last][len(last) - MAX_TREE_ROWS :]
        rows.output_row = sorted([*last, *others])
        self._run(Kind.EXTEND, rows, [wanted[row] for row in rows.output_row])
        for span in spans:
            self.texts[span.lane].extend(span.tokens)

    def _run(self, kind: Kind, rows: Rows, wanted: Sequence[list[int]]) -> None:
        outcome = self.executor.run(kind, rows)
        found = [self.executor.logits(i).copy() for i in range(len(wanted))]
        for i, (logits, ids) in enumerate(zip(found, wanted, strict=True)):
            assert digest(logits.tobytes()) == self.steps.logits(ids), f"{kind}, output {i}, {len(ids)} tokens"
            assert outcome.argmax[i] == logits.argmax()


def _tree(climbs: Sequence[int], seed: int) -> DraftTree:
    tree = DraftTree.root(0)
    for node, climb in enumerate(climbs):
        path = tree.path(node)
        tree.parents.append(path[max(0, len(path) - climb)])
        tree.scores.append(0.5)
        tree.sources.append("test")
        tree.tokens.append(0)
    tree.tokens = token_ids(len(tree), VOCAB_SIZE, seed)
    return tree


@pytest.fixture(scope="module", params=MODELS, ids="-".join)
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Staged, Steps]:
    family, profile = request.param
    folder: Path = make_checkpoint(tmp_path_factory.mktemp("one") / family, family)
    sizes = {"context_length": CONTEXT, "max_rows": MAX_ROWS, "max_lanes": NUM_LANES}
    staged = stage(oracle.read_config(folder), oracle.read_tensors(folder), profile, folder, **sizes)
    return staged, Steps(staged)


def test_no_order_of_passes_moves_a_bit(model: tuple[Staged, Steps]) -> None:
    quick = settings(
        max_examples=16,
        stateful_step_count=12,
        deadline=None,
        suppress_health_check=list(HealthCheck),
        derandomize=True,
    )
    run_state_machine_as_test(lambda: Passes(*model), settings=quick)
