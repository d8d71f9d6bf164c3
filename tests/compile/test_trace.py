"""Tracing: sizes that are read from memory never depend on the model, and equal models share a trace."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tandem.compile import trace
from tandem.compile.models.spec import FULL_ATTENTION, LlamaSpec, RopeSpec
from tandem.compile.profile import find_profile
from tandem.compile.trace import trace_commit, trace_pass

SPEC = LlamaSpec("llama", 48, 112, 3, 6, 2, 8, 333, 1e-6, 2048, False, True, False, True, RopeSpec("default", 1e4))


def test_sizes_that_stand_for_counts_differ() -> None:
    sizes = (trace.ROWS, trace.OUTPUTS, trace.MOVES, trace.LANES, trace.BLOCKS, trace.PAGES, trace.SLOTS)
    assert len(set(sizes)) == len(sizes)


@pytest.mark.parametrize("tree", [False, True])
def test_parts_know_their_parameters(tree: bool) -> None:
    parts = trace_pass(SPEC, find_profile("bf16"), 64, tree=tree)
    block = parts.blocks[FULL_ATTENTION]
    names = {"input_norm", "qkv", "qkv_bias", "q_norm", "k_norm", "o", "post_norm", "gate_up", "down"}
    assert set(parts.first.parameters.values()) == set(block.parameters.values()) == names
    assert set(parts.embed.parameters.values()) == {"embedding"}
    assert set(parts.head.parameters.values()) == {"final_norm", "head"}
    calls = [node.args for node in block.graph.nodes if "attention" in str(node.target)]
    assert len(calls) == 1 and calls[0][-1] is tree
    inputs = {n.name.removeprefix("inputs_") for n in block.graph.nodes if n.op == "placeholder" and n.users}
    held = {"position", "lane", "slot", "prefix", "ancestor", "block_table", "cos", "sin", "k_cache", "v_cache"}
    assert inputs - block.parameters.keys() == held | {"h", "delta"}


def test_rows_and_widths_of_equal_size_are_told_apart_by_place() -> None:
    """A model may be as wide as a traced count: only first dimensions are looked at."""
    narrow = replace(SPEC, hidden_size=trace.ROWS, vocab_size=trace.OUTPUTS, head_dim=2)
    parts = trace_pass(narrow, find_profile("fp32"), 64, tree=False)
    assert [tuple(n.meta["val"].shape) for n in parts.embed.graph.nodes if n.op == "call_function"] == [(13, 13)]


def test_a_trace_is_made_once() -> None:
    again = replace(SPEC)
    assert trace_pass(again, find_profile("bf16"), 64, tree=False) is trace_pass(
        SPEC, find_profile("bf16"), 64, tree=False
    )


def test_the_commit_moves_one_layer() -> None:
    part = trace_commit(SPEC, find_profile("bf16"), 64)
    calls = [str(node.target) for node in part.graph.nodes if node.op == "call_function"]
    assert calls == ["tandem.kv_move.default"] and part.parameters == {}
