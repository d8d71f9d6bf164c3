"""Whole models: every family's programs on the C++ kernels against float64 and against Transformers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
import torch

from tandem.artifacts.program import encode
from tandem.compile.checkpoints.base import Checkpoint
from tandem.compile.checkpoints.open import open_checkpoint
from tandem.compile.models.reference import ReferenceModel
from tandem.compile.models.weights import load
from tandem.compile.trace import trace_pass
from tandem.keys import Kind
from tandem.tree import DraftTree
from tests.compile.models import oracle
from tests.staged import Lane, Staged, stage
from tests.tiny import FAMILIES, HYBRIDS, VOCAB_SIZE, make_checkpoint

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}
LENGTHS = (1, 3, 64, 65, 150)
TREE = DraftTree(
    [5, 9, 9, 40, 41, 300, 7, 8, 9, 10, 11, 12, 13], [-1, 0, 1, 2, 3, 2, 0, 6, 7, 6, 9, 0, 11], [0.5] * 13, ["t"] * 13
)


def text(length: int, seed: int) -> list[int]:
    return np.random.default_rng(seed).integers(0, VOCAB_SIZE, length).tolist()


IDS = text(150, seed=1)


@dataclass(frozen=True, slots=True)
class Case:
    """A checkpoint stored in the profile's own type, staged, and run in float64."""

    profile: str
    folder: Path
    checkpoint: Checkpoint
    staged: Staged
    exact: np.ndarray  # logits of IDS

    @property
    def dtype(self) -> torch.dtype:
        return DTYPES[self.profile]

    def reference(self) -> ReferenceModel:
        spec = self.staged.spec
        tensors, rounded = dict(load(spec, self.checkpoint)), self.profile == "bf16"
        return ReferenceModel(spec, tensors, torch.float64, context_length=256, rounded=rounded)


ROPES = ("llama-linear", "llama-llama3", "llama-yarn")
"""Only tables are other than llama's: once is enough."""
CASES = [f"{family}-{p}" for family in FAMILIES + HYBRIDS for p in DTYPES if family not in ROPES or p == "fp32"]


@pytest.fixture(scope="module", params=CASES)
def case(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Case:
    family, profile = request.param.rsplit("-", 1)
    folder = tmp_path_factory.mktemp(request.param)
    make_checkpoint(folder / "checkpoint", family, dtype=str(DTYPES[profile]).removeprefix("torch."))
    checkpoint = open_checkpoint(str(folder / "checkpoint"))
    staged = stage(checkpoint.config, checkpoint, profile, folder)
    found = Case(profile, folder, checkpoint, staged, np.empty(0))
    return Case(profile, folder, checkpoint, staged, found.reference().forward(IDS).numpy())


@pytest.fixture
def lane(case: Case) -> Iterator[Lane]:
    executor = case.staged.executor(threads=1)
    yield Lane(executor)
    executor.close()


def errors(found: np.ndarray, exact: np.ndarray) -> tuple[float, float]:
    away = np.abs(found.astype(np.float64) - exact)
    return float(away.mean()), float(away.max())


def test_the_error_is_at_most_twice_that_of_transformers(case: Case, lane: Lane) -> None:
    theirs = oracle.logits(oracle.transformers_model(case.folder / "checkpoint", case.dtype), IDS).float().numpy()
    ours = lane.extend(IDS)
    for mine, other in zip(errors(ours, case.exact), errors(theirs, case.exact), strict=True):
        assert mine <= 2 * other
    assert errors(ours, case.exact)[1] <= {"fp32": 2e-5, "bf16": 0.15}[case.profile] * np.abs(case.exact).max()


def test_lengths_and_chunks_move_no_bit(case: Case, lane: Lane) -> None:
    whole = lane.extend(IDS)
    state = lane.state()
    for length, chunk in zip(LENGTHS, (1, 2, 64, 33, 64), strict=True):
        lane.length = 0
        assert (lane.extend(IDS[:length], chunk)[-1] == whole[length - 1]).all(), length
    assert lane.state() == state


def test_a_tree_is_the_text_of_its_paths(case: Case, lane: Lane) -> None:
    """Against float64 in value, against one-token steps bit by bit; then the deepest path is committed."""
    prompt, oracle64 = text(70, seed=2), case.reference()
    oracle64.forward(prompt)
    lane.extend(prompt)
    found = lane.verify(Kind.VERIFY_TREE, TREE)
    exact = oracle64.verify(TREE).numpy()
    assert errors(found, exact)[1] <= {"fp32": 2e-5, "bf16": 0.15}[case.profile] * np.abs(exact).max()
    stepper = Lane(lane.executor, lane.pages[12:], slot=2)
    stepper.extend(prompt, chunk=1)
    for node in range(len(TREE)):
        stepper.length = len(prompt)
        steps = stepper.extend([TREE.tokens[i] for i in TREE.path(node)], chunk=1)
        assert (found[node] == steps[-1]).all(), node
    path = TREE.path(10)
    lane.commit(path)
    stepper.length = len(prompt)
    stepper.extend([TREE.tokens[i] for i in path], chunk=1)
    assert lane.state() == stepper.state()
    assert (lane.extend([17]) == stepper.extend([17])).all()


def test_a_chain_is_the_text_of_its_tokens(case: Case, lane: Lane) -> None:
    lane.extend(IDS[:60])
    chain = DraftTree.chain(IDS[60], IDS[61:90], [0.5] * 29, "t")
    found = lane.verify(Kind.VERIFY_CHAIN, chain)
    lane.length = 0
    assert (found == lane.extend(IDS[:90])[60:]).all()


def test_greedy_text_is_that_of_transformers(case: Case, lane: Lane) -> None:
    if case.profile != "fp32":
        return
    model, ids = oracle.transformers_model(case.folder / "checkpoint", torch.float32), IDS[:20]
    for _ in range(40):
        ids = [*ids, int(oracle.logits(model, ids)[-1].argmax())]
    assert lane.greedy(IDS[:20], 40) == ids[20:]


@pytest.mark.parametrize("case", ["qwen3-bf16"], indirect=True)
def test_programs_are_a_function_of_the_plan(case: Case) -> None:
    again = replace(case.staged.composer)
    trace_pass.cache_clear()
    assert encode(again.program(Kind.VERIFY_TREE)) == encode(case.staged.programs[Kind.VERIFY_TREE])
