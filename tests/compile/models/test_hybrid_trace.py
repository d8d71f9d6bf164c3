"""A hybrid's parts export to our operators and views, under the names that rows and regions have."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tandem.compile.models.qwen3_5 import AttentionBlock, Factors, Pass, RecurrentBlock, RecurrentCommit
from tandem.compile.models.spec import HybridSpec, RopeSpec
from tests.compile.models.test_trace import VIEWS, caches, filled, int32, normal
from tests.compile.models.test_trace import inputs as rows

ROPE, LAYERS = RopeSpec("default", 1e4), ("linear_attention", "full_attention")
SPEC = HybridSpec(
    "qwen3_5", 48, 112, 2, 6, 2, 8, 333, 1e-6, 2048, False, False, False, True, ROPE, LAYERS, 0.5, 2, 4, 12, 10, 4
)  # fmt: skip
SHARED = {"add_rms_norm", "linear", "swiglu"}
EXTENDED = SHARED | {"delta_gates", "gated_rms_norm", "causal_conv", "delta_rule"}
VERIFIED = SHARED | {"delta_gates", "gated_rms_norm", "conv_verify", "delta_verify"}
PARTS = {
    "attention": SHARED | {"rms_norm", "rotary", "kv_write", "attention", "sigmoid_gate"},
    "first": EXTENDED | {"rms_norm"},
    "extend": EXTENDED,
    "chain": VERIFIED,
    "tree": VERIFIED,
    "commit": {"conv_commit", "delta_commit"},
}
TOLD = {"inputs_state_slot", "inputs_lane", "inputs_position", "inputs_parent", "state", "tail"}
KEPT = {"factors_raw", "factors_k", "factors_u", "factors_decay"}


def inputs() -> Pass:
    """Five rows of two lanes; the second lane's three rows are a fork at position 20."""
    told = rows()._replace(cos=normal(90, 2), sin=normal(90, 2))
    return Pass(*told, parent=int32(-1, 0, -1, 2, 2), state_slot=int32(2, 0))


def memory() -> tuple[Tensor, Tensor]:
    return normal(3, *SPEC.state_shape), normal(3, *SPEC.tail_shape)


def factors() -> Factors:
    heads, dk, dv = SPEC.state_shape
    return Factors(normal(8, SPEC.conv_size), normal(8, 2, dk), normal(8, heads, dv), normal(8, heads))


def part(name: str) -> tuple[nn.Module, tuple[Any, ...]]:
    h, delta = normal(5, 48), normal(48, 5).T.contiguous()
    match name:
        case "attention":
            return filled(AttentionBlock(SPEC, tree=True)), (h, delta, inputs(), *caches())
        case "first":
            return filled(RecurrentBlock(SPEC)), (h, None, inputs(), *memory())
        case "extend":
            return filled(RecurrentBlock(SPEC, rounded=True)), (h, delta, inputs(), *memory())
        case "chain":
            return filled(RecurrentBlock(SPEC)), (h, delta, inputs(), *memory(), factors())
        case "tree":
            return filled(RecurrentBlock(SPEC, tree=True)), (h, delta, inputs(), *memory(), factors())
    return RecurrentCommit(), (factors(), *memory(), int32(2, 0), int32(0, 1, 1), int32(0, 2, 4), int32(3, 20, 21))


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
    found = torch.export.export(*part(name)).module()(*traced)
    leaves = torch.utils._pytree.tree_leaves
    for ours, theirs in zip(leaves((found, traced)), leaves((wanted, eager)), strict=True):  # memory too
        assert ours is theirs or torch.equal(ours, theirs)


@pytest.mark.parametrize(
    ("name", "wanted"),
    (
        ("extend", TOLD | {"h", "delta"}),
        ("tree", TOLD | KEPT | {"h", "delta"}),
        ("commit", KEPT | {"state", "tail", "state_slot", "move_lane", "move_row", "move_target"}),
    ),
)
def test_what_a_part_is_told_is_named_as_rows_and_regions_are(name: str, wanted: set[str]) -> None:
    exported = torch.export.export(*part(name))
    parameters = {spec.arg.name for spec in exported.graph_signature.input_specs if spec.target}
    used = {node.name for node in exported.graph.nodes if node.op == "placeholder" and node.users}
    assert used - parameters == wanted
