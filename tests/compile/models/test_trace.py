"""Every part exports with static shapes to our operators and views, and its graph does what the part does eagerly."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tandem.compile.models.llama import Block, Commit, Embed, Head, Pass
from tandem.compile.models.spec import LlamaSpec, RopeSpec

ROWS, OUTPUTS, PAGE_TOKENS = 5, 3, 16
PLAIN = LlamaSpec("llama", 48, 112, 3, 6, 2, 8, 333, 1e-6, 2048, False, False, False, False, RopeSpec("default", 1e4))
FULL = replace(PLAIN, attention_bias=True, output_bias=True, head_norms=True)
VIEWS = {"aten.slice.Tensor", "aten.view.default", "<built-in function getitem>"}


def normal(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)))


def int32(*values: int) -> Tensor:
    return torch.tensor(values, dtype=torch.int32)


def filled(module: nn.Module, matrix: torch.dtype = torch.float32) -> nn.Module:
    for parameter in module.parameters():
        parameter.data = normal(*parameter.shape).to(matrix if parameter.dim() == 2 else torch.float32) * 0.1
    return module


def caches() -> tuple[Tensor, Tensor]:
    return normal(12, 2, 8, PAGE_TOKENS), normal(12, 2, PAGE_TOKENS, 8)


def inputs() -> Pass:
    """Five rows of two lanes; the second lane's three rows are a fork at position 20."""
    ancestor = torch.zeros(ROWS, 32, dtype=torch.int32)
    ancestor[2, 0], ancestor[3, :2], ancestor[4, :2] = 20, int32(20, 21), int32(20, 22)
    table = torch.arange(12, dtype=torch.int32).view(2, 6)
    position, lane, slot = int32(3, 4, 20, 21, 21), int32(0, 0, 1, 1, 1), int32(3, 4, 20, 21, 22)
    return Pass(position, lane, slot, int32(4, 5, 20, 20, 20), ancestor, table, normal(90, 4), normal(90, 4))


def part(name: str) -> tuple[nn.Module, tuple[Any, ...]]:
    """A part with weights and the arguments it is traced with; fresh ones at every call."""
    h, delta = normal(ROWS, 48), normal(48, ROWS).T.contiguous()
    match name:
        case "embed":
            return filled(Embed(PLAIN), torch.bfloat16), (int32(4, 0, 332, 7, 4),)
        case "first":
            return filled(Block(PLAIN)), (h, None, inputs(), *caches())
        case "tree":
            return filled(Block(FULL, tree=True), torch.bfloat16), (h, delta, inputs(), *caches())
        case "straight":
            return filled(Block(FULL)), (h, delta, inputs(), *caches())
        case "head":
            return filled(Head(PLAIN), torch.bfloat16), (h, delta, int32(0, 3, 4))
    return Commit(), (*caches(), int32(0, 1), int32(9, 30), int32(8, 27), inputs().block_table)


PARTS = {
    "embed": {"embedding"},
    "first": {"rms_norm", "add_rms_norm", "linear", "rotary", "kv_write", "attention", "swiglu"},
    "tree": {"rms_norm", "add_rms_norm", "linear", "rotary", "kv_write", "attention", "swiglu"},
    "straight": {"rms_norm", "add_rms_norm", "linear", "rotary", "kv_write", "attention", "swiglu"},
    "head": {"gather_rows", "add_rms_norm", "linear", "argmax_gap"},
    "commit": {"kv_move"},
}


@pytest.mark.parametrize("name", PARTS)
def test_graphs_hold_operators_and_views_only(name: str) -> None:
    graph = torch.export.export(*part(name)).graph
    found = {str(node.target) for node in graph.nodes if node.op == "call_function"}
    assert found - VIEWS == {f"tandem.{operator}.default" for operator in PARTS[name]}
    assert {node.op for node in graph.nodes} <= {"placeholder", "call_function", "output"}


@pytest.mark.parametrize("name", PARTS)
def test_graphs_do_what_the_part_does(name: str) -> None:
    module, eager = part(name)
    wanted = module(*eager)
    _, traced = part(name)
    program = torch.export.export(*part(name)).module()
    found = program(*traced)
    for ours, theirs in zip(_tensors((found, traced)), _tensors((wanted, eager)), strict=True):  # caches too
        assert torch.equal(ours, theirs)


def _tensors(tree: object) -> list[Tensor]:
    return [leaf for leaf in torch.utils._pytree.tree_leaves(tree) if isinstance(leaf, Tensor)]


def test_a_block_exports_without_memory_for_its_weights() -> None:
    with torch.device("meta"):
        block = Block(FULL)
        arguments = torch.utils._pytree.tree_map(
            lambda t: t.to("meta") if isinstance(t, Tensor) else t, part("straight")[1]
        )
    program = torch.export.export(block, arguments)
    names = [spec.target for spec in program.graph_signature.input_specs if spec.target]
    wanted = "input_norm qkv qkv_bias q_norm k_norm o o_bias post_norm gate_up down"
    assert names == wanted.split()


def test_a_row_of_a_fork_does_not_see_its_sibling() -> None:
    """The model's tree flag reaches attention: another key in slot 21 moves row 3 and not row 4."""
    block, arguments = part("tree")
    h, _ = block(*arguments)
    moved = arguments[0].clone()
    moved[3] += 1.0
    again, _ = block(moved, *part("tree")[1][1:])
    changed = (h != again).any(dim=1)
    assert changed.tolist() == [False, False, False, True, False]
