"""The guide of thoughts: what it forces, asked in any order, against a look at the whole text."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tandem.runtime.thinking.block import BlockReader, Tags
from tandem.runtime.thinking.guide import BUDGET, Closings, ThoughtsGuide
from tandem.runtime.thinking.watcher import Loop
from tandem.tree import DraftTree
from tests.thinking_reference import BARE, USUAL, WORDS, forced

READER = BlockReader(Tags(), WORDS.__getitem__)
VOCAB = len(WORDS)


class Triples:
    """A watcher that fires at three equal tokens in a row."""

    def __init__(self) -> None:
        self.ids: list[int] = []

    def push(self, token: int) -> Loop | None:
        self.ids.append(token)
        return Loop.PATTERN if triple(self.ids) else None

    def pop(self) -> None:
        self.ids.pop()


def triple(ids: Sequence[int]) -> bool:
    return len(ids) >= 3 and len(set(ids[-3:])) == 1


def made(
    prompt: Sequence[int], budget: int | None, watched: bool = False, told: list[str] | None = None
) -> ThoughtsGuide:
    heard = [] if told is None else told
    watcher = Triples() if watched else None
    in_thoughts, closings = READER.opened_by(prompt), Closings(USUAL, BARE)
    return ThoughtsGuide(READER, in_thoughts, closings, budget=budget, watcher=watcher, closed=heard.append)


def due(guide: ThoughtsGuide) -> tuple[int, ...]:
    """What is added to a draft of nothing."""
    return tuple(guide.cut(DraftTree.root(9)).tokens[1:])


def lines(tree: DraftTree) -> set[tuple[int, ...]]:
    """The tokens on the way to each node."""
    return {tuple(tree.tokens[i] for i in tree.path(node)[1:]) for node in range(len(tree))}


# Mostly thoughts, so that budgets are reached; a step is a draft that is looked into, and what comes of it.
tokens = st.one_of(st.integers(0, VOCAB - 1), st.sampled_from([9, 9, 10, 14, 2, 3]))
paths = st.lists(tokens, max_size=7)
steps = st.lists(st.tuples(st.lists(paths, max_size=3), st.integers(1, 6), paths), min_size=1, max_size=6)


@settings(max_examples=150)
@given(
    prompt=st.sampled_from([[9], [1], [1, 8], [0, 1]]),
    opening=st.sampled_from([[], [1], [8, 6, 3, 4]]),
    budget=st.none() | st.integers(0, 9),
    watched=st.booleans(),
    steps=steps,
)
def test_whatever_is_asked_the_text_alone_decides(
    prompt: list[int], opening: list[int], budget: int | None, watched: bool, steps: list
) -> None:
    loops = triple if watched else (lambda ids: False)
    told, answer = list[str](), list[int]()
    guide = made(prompt, budget, watched, told)
    wish = iter([*opening, *(token for _, _, path in steps for token in path), *[5] * 40])

    def must(said: Sequence[int]) -> int | None:
        return forced(prompt, [*answer, *said], budget, loops)

    for drafts, length, _ in steps:
        for said in [[], *(draft[:n] for draft in drafts for n in range(len(draft) + 1))]:
            id_ = must(said)
            assert guide.changes(said) == (id_ is not None)
            row = guide.applied(np.ones(VOCAB, np.float32), said)
            assert all(guide.keeps(token, said) == (id_ in (None, token)) for token in range(VOCAB))
            assert id_ is None or (row.argmax(), np.isfinite(row).sum()) == (id_, 1)
        came = list[int]()
        while len(came) < length:
            id_ = must(came)
            came.append(next(wish) if id_ is None else id_)
        rest = guide.cut(DraftTree.root(9)).tokens[1:]
        assert bool(rest) == (must(()) is not None) and (not rest or rest[0] == must(()))
        guide.extend(came)
        answer += came
        begun = [n for n in range(len(answer)) if forced(prompt, answer[:n], budget, loops) is not None]
        assert len(told) == bool(begun)


@settings(max_examples=150)
@given(
    budget=st.integers(0, 6),
    answer=st.lists(tokens, max_size=5),
    nodes=st.lists(st.tuples(tokens, st.integers(0, 30)), max_size=12),
)
def test_drafts_are_cut_to_what_a_text_could_go_on_with(
    budget: int, answer: list[int], nodes: list[tuple[int, int]]
) -> None:
    kept = list[int]()
    for token in answer:
        id_ = forced([1], kept, budget)
        kept.append(token if id_ is None else id_)
    guide = made([1], budget)
    for token in kept:
        guide.extend([token])
    tree = DraftTree.root(9)
    for token, parent in nodes:
        tree = DraftTree(
            [*tree.tokens, token],
            [*tree.parents, parent % len(tree)],
            [*tree.scores, 0.5],
            [*tree.sources, "x"],
        )
    certain = list[int]()
    while (id_ := forced([1], [*kept, *certain], budget)) is not None:
        certain.append(id_)
    possible = {
        line for line in lines(tree)
        if all(forced([1], [*kept, *line[:n]], budget) in (None, line[n]) for n in range(len(line)))
    }  # fmt: skip
    assert lines(guide.cut(tree)) == possible | {tuple(certain[:n]) for n in range(len(certain) + 1)}


def test_a_budget_of_nothing_closes_bare_and_at_once() -> None:
    guide, opened = made([1], 0), made([9], 0)
    assert guide.changes(()) and due(guide) == BARE
    assert not opened.changes(()) and opened.changes([1]) and not opened.changes([8, 1]) and not opened.changes([9, 1])


def test_what_is_forced_is_the_rest_of_the_closing_text() -> None:
    guide = made([1], 2)
    guide.extend([9, 10])
    rests = []
    while rest := due(guide):
        rests.append(rest)
        guide.extend(rest[:1])
    assert rests == [USUAL[n:] for n in range(len(USUAL))]
    guide.extend([1, 9, 10, 14])
    assert not guide.changes(()) and not due(guide), "a block is closed once"


@pytest.mark.parametrize(
    ("budget", "watched", "why"), [(5, False, BUDGET), (None, True, Loop.PATTERN), (3, True, BUDGET)]
)
def test_the_reason_is_told_when_the_closing_is_committed(budget: int | None, watched: bool, why: str) -> None:
    told = list[str]()
    guide = made([1], budget, watched, told)
    for token in [9, 9, 9] if watched else [9, 10, 9, 10, 14]:
        assert told == []
        guide.extend([token])
    guide.changes([8, 9])
    assert told == [], "a draft is no text"
    for token in USUAL:
        guide.extend([token])
        assert told == [why]
