"""The identity scenario is a function of the arithmetic alone."""

from __future__ import annotations

import hashlib
import itertools

import numpy as np
import pytest

from tandem.artifacts.reader import Bundle
from tandem.runtime.checks.lab import Lab, pages_for, token_ids
from tandem.runtime.checks.oracle import sealed
from tandem.runtime.checks.scenario import SCENARIOS, branching_tree, run_scenario
from tandem.runtime.loading import open_executor
from tests.fakes import ScriptedExecutor, geometry, marks, row_logits
from tests.runtime.checks.faults import Faulty

CAPACITIES = geometry(context_length=160, max_rows=40)


def digest_of(ids: list[int]) -> str:
    """Of logits and argmax after `ids`, by the fakes' own definition."""
    logits = row_logits(marks(ids)[-1], CAPACITIES.vocab_size)
    return hashlib.sha256(logits.tobytes() + int(np.argmax(logits)).to_bytes(4, "little")).hexdigest()


@pytest.mark.parametrize("nodes", [3, 15])
def test_the_tree_branches_and_stands_depth_first(nodes: int) -> None:
    tree = branching_tree(3, list(range(nodes)))
    assert len(tree) == nodes + 1 and not tree.is_chain
    for node, parent in itertools.islice(enumerate(tree.parents), 1, None):
        assert parent in tree.path(node - 1), "subtrees are contiguous"
    assert len(tree.path(nodes)) < len(tree), "a commit has something to move"


@pytest.mark.parametrize("name", ["full", "load"])
def test_digests_are_those_of_the_text(name: str) -> None:
    sizes = SCENARIOS[name]
    executor = ScriptedExecutor(capacities=CAPACITIES)
    found = dict(run_scenario(Lab(executor, 4), sizes))
    ids = token_ids(sizes.tokens, CAPACITIES.vocab_size, seed=42)
    assert found[f"prefill of {sizes.prefill}: logits"] == digest_of(ids[: sizes.prefill])
    below = sizes.prefill
    for chain in sizes.chains:
        for row in range(chain):
            assert found[f"chain of {chain}, row {row}: logits"] == digest_of(ids[: below + row + 1])
        below += chain
    tree = branching_tree(ids[below], ids[below + 1 : below + sizes.tree])
    for node in range(len(tree)):
        path = [tree.tokens[i] for i in tree.path(node)]
        assert found[f"tree of {sizes.tree}, row {node}: logits"] == digest_of(ids[:below] + path)
    text = ids[:below] + [tree.tokens[i] for i in tree.path(len(tree) - 1)]
    assert found["commit: state"] == hashlib.sha256(b"".join(marks(text))).hexdigest()
    assert found["one-token step: logits"] == digest_of([*text, ids[-1]])


def test_pages_lanes_and_earlier_text_change_nothing() -> None:
    executor = ScriptedExecutor(capacities=CAPACITIES)
    alone = run_scenario(Lab(executor, 1), SCENARIOS["full"])
    assert run_scenario(Lab(executor, 3), SCENARIOS["full"]) == alone
    assert run_scenario(Lab(Faulty(executor, "logits"), 1), SCENARIOS["full"]) != alone


@pytest.mark.parametrize("threads", [1, 2])
def test_a_bundle_repeats_what_it_was_sealed_with(opened: Bundle, threads: int) -> None:
    oracle, g = sealed(opened), opened.geometry
    assert set(oracle) == set(SCENARIOS)
    executor = open_executor(opened, threads=threads, num_pages=pages_for(SCENARIOS["full"].tokens, g.page_tokens, 2))
    try:
        for name, sizes in SCENARIOS.items():
            assert run_scenario(Lab(executor, 2), sizes) == oracle[name]
    finally:
        executor.close()
