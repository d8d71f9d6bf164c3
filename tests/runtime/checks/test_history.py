"""A lab's lanes may go on from any position they hold, however many states are kept on the way."""

from __future__ import annotations

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from tandem.keys import Kind
from tandem.runtime.checks.lab import Lab
from tandem.runtime.checks.proof import random_tree
from tandem.tree import DraftTree
from tests.fake_recurrent import RecurrentExecutor, state_of
from tests.fakes import MARK_BYTES, geometry, marks

CAPACITIES = geometry()
tokens = st.lists(st.integers(0, CAPACITIES.vocab_size - 1), min_size=1, max_size=6)
step = st.tuples(st.integers(0, 1), st.floats(0, 1), tokens, st.booleans())


@settings(max_examples=150, deadline=None)
@given(steps=st.lists(step, min_size=1, max_size=25), kept=st.sampled_from([0, 1, 3, 100]))
def test_any_walk_over_positions_leaves_the_state_of_its_text(
    steps: list[tuple[int, float, list[int], bool]], kept: int
) -> None:
    executor = RecurrentExecutor(capacities=CAPACITIES)
    lab, texts = Lab(executor, 2, kept * MARK_BYTES), [list[int](), list[int]()]
    for lane, share, ids, drafted in steps:
        start = min(round(share * len(texts[lane])), CAPACITIES.context_length - len(ids))
        if drafted:
            chain = DraftTree.chain(ids[0], ids[1:], [0.5] * (len(ids) - 1), "test")
            lab.verify(Kind.VERIFY_CHAIN, [lane], [start], [chain])
            lab.commit([lane], [start], [range(len(ids))])
        else:
            lab.extend(lane, ids, start)
        texts[lane][start:] = ids
        for number, text in enumerate(texts):
            length = round(share * len(text))
            lab.state(number, length)
            if length:
                assert executor.save(lab.slots[number], length).state.tobytes() == state_of(text[:length])
                assert executor.kv(lab.table[number], length) == b"".join(marks(text[:length]))


@pytest.mark.parametrize("kept", [0, 100])
def test_a_claimed_state_is_that_of_its_position(kept: int) -> None:
    """Whatever the slot holds: passes from there on are the same each time, and nothing before it is asked for."""
    executor = RecurrentExecutor(capacities=CAPACITIES)
    lab = Lab(executor, 1, kept * MARK_BYTES)
    lab.fill(0, [3, 1, 4, 1, 5])
    held = executor.save(lab.slots[0], 5).state.tobytes()
    lab.claim(0, 40)
    states = []
    for _ in range(3):
        lab.extend(0, [9, 2, 6], 40)
        lab.extend(0, [5], 42)
        lab.state(0, 43)
        states.append(executor.save(lab.slots[0], 43).state.tobytes())
        lab.state(0, 40)
        assert executor.save(lab.slots[0], 40).state.tobytes() == held
    assert len(set(states)) == 1


def test_joint_trees_are_committed_lane_by_lane() -> None:
    import random

    executor, rng = RecurrentExecutor(capacities=CAPACITIES), random.Random(5)
    lab, texts = Lab(executor, 3), [[7, 8], [1], [2, 2, 2, 2]]
    for lane, text in enumerate(texts):
        lab.fill(lane, text)
    for _ in range(6):
        trees = [random_tree(7, CAPACITIES.vocab_size, rng) for _ in texts]
        paths = [tree.path(rng.randrange(7)) for tree in trees]
        starts = [len(text) for text in texts]
        lab.verify(Kind.VERIFY_TREE, range(3), starts, trees)
        lab.commit(range(3), starts, paths)
        for lane, (text, tree, path) in enumerate(zip(texts, trees, paths, strict=True)):
            text += [tree.tokens[node] for node in path]
            assert executor.save(lab.slots[lane], len(text)).state.tobytes() == state_of(text)
