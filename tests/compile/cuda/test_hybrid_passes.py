"""Whole passes of tiny hybrids by the interpreter: right to float64, the same bits in chunks, steps and verifies."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tandem.keys import Kind
from tandem.runtime.checks.lab import Lab
from tandem.tree import DraftTree
from tests.compile.cuda.interpreted import InterpretedExecutor
from tests.compile.cuda.lowered import composer
from tests.compile.models import oracle
from tests.staged import Lane

IDS = [5, 17, 31, 8, 8, 39, 2]
SMALL: dict[str, Any] = {
    "hidden_size": 32, "intermediate_size": 40, "vocab_size": 40, "num_hidden_layers": 3, "linear_num_key_heads": 1,
    "linear_num_value_heads": 2,
}  # fmt: skip
LAYERS = {"qwen3_5": ("linear", "full", "linear"), "qwen3_5-odd": ("full", "linear", "linear")}


def small(folder: Path, family: str, profile: str) -> Any:
    layer_types = [f"{name}_attention" for name in LAYERS[family]]
    return composer(folder, family, profile, 64, layer_types=layer_types, **SMALL)


def tree(tokens: list[int], parents: list[int]) -> DraftTree:
    return DraftTree(tokens, parents, [0.5] * len(tokens), ["test"] * len(tokens))


def test_extends_verifies_and_commits_are_float64s_and_one_arithmetic(tmp_path: Path) -> None:
    """In one executor all at once, in another row by row and behind a chunk; both begin in poison."""
    model = small(tmp_path, "qwen3_5", "fp32")
    exact = oracle.reference(tmp_path / "checkpoint", torch.float64)
    one, other = Lane(InterpretedExecutor(model, buckets=(8,))), Lane(InterpretedExecutor(model, buckets=(1, 64)))

    def near(found: np.ndarray, wanted: torch.Tensor) -> None:
        np.testing.assert_allclose(found, wanted.numpy(), rtol=2e-5, atol=2e-5 * wanted.abs().max().item())

    found = one.extend(IDS)
    near(found, exact.extend(IDS))
    apart = [other.extend(IDS[:1]), other.extend(IDS[1:2]), other.extend(IDS[2:])]
    assert (np.concatenate(apart) == found).all() and one.state() == other.state()
    drafted, path = tree([9, 8, 7, 6, 5, 4], [-1, 0, 1, 1, 0, 4]), [0, 1, 3]
    found = one.verify(Kind.VERIFY_TREE, drafted)
    near(found, exact.verify(drafted))
    one.commit(path)
    exact.commit(path)
    steps = [other.extend([drafted.tokens[node]]) for node in path]
    assert (np.concatenate(steps) == found[path]).all() and one.state() == other.state()
    drafted = DraftTree.chain(11, [12, 13], [0.5] * 2, "test")
    found = one.verify(Kind.VERIFY_CHAIN, drafted)
    near(found, exact.verify(drafted))
    one.commit([0, 1])
    assert (np.concatenate([other.extend([11]), other.extend([12])]) == found[:2]).all()
    assert one.state() == other.state()


def test_lanes_of_a_pass_have_the_bits_of_steps_alone(tmp_path: Path) -> None:
    """Convolutions of three taps, attention first, tails in bf16; one lane's text begins in the verify."""
    model = small(tmp_path, "qwen3_5-odd", "bf16")
    joint, alone = (
        Lab(InterpretedExecutor(model, num_pages=2, buckets=buckets), 2) for buckets in ((2, 8, 16), (1, 2))
    )
    joint.extend(1, IDS[:2], 0)
    alone.extend(1, IDS[:2], 0)
    trees = [tree([3, 9, 4, 1], [-1, 0, 0, 2]), tree([6, 2, 7], [-1, 0, 0])]
    paths = {0: [0, 2, 3], 1: [0, 2]}
    found = joint.verify(Kind.VERIFY_TREE, [0, 1], [0, 2], trees)
    joint.commit([0, 1], [0, 2], list(paths.values()))
    for lane, start, draft in zip((0, 1), (0, 2), trees, strict=True):
        steps = [alone.extend(lane, [draft.tokens[node]], start + i)[0] for i, node in enumerate(paths[lane])]
        assert steps == [found[lane][node] for node in paths[lane]]
    ends = [3, 4]
    assert [joint.state(lane, ends[lane]) for lane in (0, 1)] == [alone.state(lane, ends[lane]) for lane in (0, 1)]
    assert joint.step([1, 0], [5, 5], ends[::-1]) == [alone.extend(lane, [5], ends[lane])[0] for lane in (1, 0)]


@pytest.mark.parametrize("family", list(LAYERS))
def test_a_slot_is_as_a_composer_lays_it_out(tmp_path: Path, family: str) -> None:
    """Behind a text of one token a tail is zeros but for its last input, and every state is of rank one."""
    model = small(tmp_path, family, "bf16")
    executor = InterpretedExecutor(model, num_pages=1, buckets=(1,))
    lane = Lane(executor)
    lane.extend(IDS[:1])
    slot, layers = executor.save(0, 1).state, model.geometry.recurrent_layers
    size = 4 * layers * int(np.prod(model.spec.state_shape))
    states = slot[:size].view(np.float32).reshape(layers, *model.spec.state_shape)
    assert (np.linalg.matrix_rank(states) == 1).all()
    tails = slot[size:].view(np.uint16).reshape(layers, *model.spec.tail_shape)
    assert not tails[:, :-1].any() and (tails[:, -1] != 0).all()
