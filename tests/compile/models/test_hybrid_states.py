"""Recurrent states and convolution tails against Transformers', and bit by bit whatever passes they came from."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
import torch

from tandem.compile.models.qwen3_5 import RecurrentBlock
from tandem.compile.models.reference import SLOT, ReferenceModel
from tandem.tree import DraftTree
from tests.compile.models import oracle
from tests.compile.models.test_against_transformers import close, text
from tests.tiny import HYBRIDS, make_checkpoint

BRANCHES = [-1, 0, 1, 1, 3, 0, 5, 5, 7, 8, 0, 10]


@pytest.fixture(scope="module", params=HYBRIDS)
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_checkpoint(tmp_path_factory.mktemp("tiny") / request.param, request.param)


@pytest.fixture
def ours(folder: Path) -> ReferenceModel:
    return oracle.reference(folder, context_length=256)


def memory(model: ReferenceModel) -> list[torch.Tensor]:
    """State and tail of every recurrent layer in turn, all slots."""
    layers = zip(model.blocks, model.caches, strict=True)
    return [tensor.clone() for block, caches in layers if isinstance(block, RecurrentBlock) for tensor in caches]


def draft(parents: Sequence[int]) -> DraftTree:
    return DraftTree(text(len(parents), seed=2), list(parents), [1.0] * len(parents), ["test"] * len(parents))


def same(found: list[torch.Tensor], wanted: list[torch.Tensor]) -> None:
    for one, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("length", (1, 3, 64, 65, 200))
def test_states_are_those_of_transformers(folder: Path, ours: ReferenceModel, length: int) -> None:
    theirs, ids = oracle.transformers_model(folder), text(length)
    ours.cos, ours.sin = oracle.tables(theirs, ours.cos.shape[0])
    ours.forward(ids)
    wanted = oracle.states(theirs, ids)
    assert {i for i, block in enumerate(ours.blocks) if isinstance(block, RecurrentBlock)} == wanted.keys()
    for layer, (state, raw) in wanted.items():
        found, tail = ours.caches[layer]
        close(found[SLOT], state)
        close(tail[SLOT], raw[:, -tail.shape[1] :].T)


def test_chunks_verifies_and_commits_leave_what_steps_leave(ours: ReferenceModel) -> None:
    """Rounds in every order: many accepted, the anchor alone, plain, a chain in part, a tree's other branch."""
    ours.forward(text(30))
    ids = text(30)
    for parents, end in ((BRANCHES, 9), (BRANCHES, 0), (None, 0), (range(-1, 6), 3), (range(-1, 6), 6), (BRANCHES, 11)):
        if parents is None:
            ours.extend([5])
            ids.append(5)
            continue
        tree = draft(parents)
        before = memory(ours)
        ours.verify(tree)
        same(memory(ours), before)
        ours.commit(tree.path(end))
        ids += [tree.tokens[node] for node in tree.path(end)]
    found, length = memory(ours), ours.length
    assert length == len(ids)
    ours.length = 0
    for token in ids:
        ours.extend([token])
    for one, other in zip(found, memory(ours), strict=True):
        close(one[SLOT], other[SLOT], 1e-12)
    assert all(bool(tensor[[0, 2]].isnan().all()) for tensor in found)  # slots of other lanes


@pytest.mark.parametrize("end", (0, 4, 9, 11))
def test_a_commit_has_the_bits_of_the_pass_that_keeps_its_rows(folder: Path, end: int) -> None:
    """In float32. One row at a time: products of torch do not promise the bits of a row whatever stands beside it."""
    ours, prompt = oracle.reference(folder, torch.float32, context_length=256), text(20)
    ours.forward(prompt)
    start = [tuple(t.clone() for t in pair) for pair in ours.caches]
    tree = draft(BRANCHES)
    for node in tree.path(end):
        ours.verify(DraftTree.root(tree.tokens[node]))
        ours.commit([0])
    found = memory(ours)
    ours.caches, ours.length = start, len(prompt)
    for node in tree.path(end):
        ours.extend([tree.tokens[node]])
    same(found, memory(ours))


def test_an_exact_rounding_point_is_kept_where_it_is_asked_for(folder: Path) -> None:
    plain, rounded = (oracle.reference(folder, torch.float32, rounded=flag) for flag in (False, True))
    wanted, found = plain.forward(text(9)), rounded.forward(text(9))
    assert not torch.equal(found, wanted)
    assert (found - wanted).abs().max() < 2e-2 * wanted.abs().max()
