"""Passes of the benchmark hold what an executor asks of rows, and answers are counted as the engine counts."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from bench.gpu.passes import Passes, answer, bushy, chain, interleaved
from tandem.keys import Kind
from tandem.runtime.request import Penalties, Sampling
from tests.fake_recurrent import RecurrentExecutor
from tests.fakes import ScriptedExecutor, geometry

SIZES = geometry(context_length=256, max_rows=64)


def passes(num_pages: int = 36) -> Passes:
    return Passes(ScriptedExecutor(capacities=SIZES, num_pages=num_pages))


def test_a_context_is_prefilled_once_and_in_whole_chunks() -> None:
    lane = passes()
    lane.fill(150)
    lane.fill(100)
    lane.fill(160)
    assert lane.executor.passes == [(Kind.EXTEND, 64), (Kind.EXTEND, 64), (Kind.EXTEND, 22), (Kind.EXTEND, 10)]
    lane.forget()
    lane.fill(10)
    assert lane.executor.passes[-1] == (Kind.EXTEND, 10)


def test_more_than_the_pages_hold_is_refused() -> None:
    with pytest.raises(ValueError, match="200 tokens"):
        passes(num_pages=12).fill(200)


@pytest.mark.parametrize("rows", [1, 16, 32])
def test_steps_and_verifies_are_passes_of_their_kind(rows: int) -> None:
    lane = passes()
    lane.fill(100)
    assert lane.step(100) == pytest.approx(1.1)
    for kind in (Kind.VERIFY_CHAIN, Kind.VERIFY_TREE):
        assert lane.verify(kind, rows, 100) == pytest.approx(1 + rows / 10)
        assert lane.executor.passes[-1] == (kind, rows)


def test_rows_are_drawn_with_the_path_to_them() -> None:
    executor = ScriptedExecutor(capacities=geometry(context_length=256, max_rows=64, draws=True), num_pages=36)
    lane = Passes(executor)
    lane.fill(100)
    for rows in (1, 32):
        before = executor.draws.drawn
        lane.draw(rows, 100, Sampling(0.7, top_k=5), Penalties(presence=1.0))
        assert executor.draws.drawn == before + rows


def test_lanes_of_hybrids_have_a_slot_and_commit_whole_paths() -> None:
    """The fake holds that every row is told what it follows, and every move its row."""
    lane = Passes(RecurrentExecutor(capacities=SIZES, num_pages=36))
    lane.fill(100)
    lane.step(100)
    for rows in (1, 16, 32):
        lane.verify(Kind.VERIFY_TREE, rows, 100)
        assert lane.commit(rows, 100) >= 0
    lane.verify(Kind.VERIFY_CHAIN, 8, 100)


def test_the_tree_is_a_tree_of_both_kinds_of_nodes() -> None:
    tree = bushy(list(range(32)))
    assert len(tree) == 32
    assert all(-1 <= parent < node for node, parent in enumerate(tree.parents))
    # Depth-first pre-order: a node hangs on the path to the one before it.
    assert all(tree.parents[node] in tree.path(node - 1) for node in range(1, 32))
    assert not tree.is_chain
    assert max(tree.depths()) > 4
    assert chain(list(range(5))).is_chain


def test_an_answer_has_its_tokens_and_rounds_without_drafts() -> None:
    executor = ScriptedExecutor(capacities=SIZES, num_pages=36)
    found = answer(executor, {"1024": {"extend": {"1": 1.0}, "plain": 1.0}, "step_ms": 0.1}, 70, 12)
    assert len(found.ids) == 12
    assert found.stats.rounds == 11
    assert found.ms == pytest.approx(found.stats.decode_ms / 11)
    assert executor.passes == [(Kind.EXTEND, 56), (Kind.EXTEND, 14), *[(Kind.EXTEND, 1)] * 11]


def test_sides_take_turns_and_the_first_turn_does_not_count() -> None:
    order: list[str] = []

    def side(name: str, base: float) -> Callable[[], float]:
        def play() -> float:
            order.append(name)
            return base + len(order)

        return play

    found = interleaved({"a": side("a", 0), "b": side("b", 100)}, 2)
    assert order == ["a", "b"] * 3
    assert found["a"].runs == (3, 5)
    assert found["b"].runs == (104, 106)
