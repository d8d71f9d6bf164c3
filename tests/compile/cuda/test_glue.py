"""Runs of glue in exported parts: found between operators, true at any row count, refused where rows would mix."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.fx import Node
from torch.fx.node import map_arg
from torch.nn.functional import softplus

from tandem.compile.cuda.glue import Run, steps
from tandem.compile.models.llama import parameter
from tandem.compile.models.spec import LlamaSpec, RopeSpec
from tandem.compile.profile import find_profile
from tandem.compile.trace import Part, export_part, trace_commit, trace_pass
from tandem.errors import LoweringError
from tandem.kernels import linear, rms_norm

ROWS, HIDDEN, HEADS, WIDTH = 13, 32, 4, 8


class Gated(nn.Module):
    """A layer with all kinds of glue: gates, decays of weights alone, casts, views before, between and behind."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = parameter(2 * HIDDEN, HIDDEN), parameter(HIDDEN, HIDDEN)
        self.norm, self.decay, self.shift = parameter(HIDDEN), parameter(HEADS), parameter(HEADS)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        rows = x.shape[0]
        both = linear(x, self.first, None)
        gate, value = both[:, :HIDDEN], both[:, HIDDEN:]
        step = -self.decay.exp() * softplus(both[:, :HEADS] + self.shift)  # [R, HEADS]
        opened = torch.sigmoid(gate) * value
        normed = rms_norm(opened, self.norm, 1e-5)
        low, high = torch.sigmoid(normed).to(torch.bfloat16).float().chunk(2, -1)
        swapped = (low + 2.0 * high).view(rows, WIDTH // 2, HEADS).transpose(1, 2)  # [R, HEADS, WIDTH / 2]
        mixed = opened.view(rows, HEADS, WIDTH)[:, :, 1::2] * step.unsqueeze(-1) + swapped
        spread = mixed.unsqueeze(-1).expand(rows, HEADS, WIDTH // 2, 2) * self.norm.view(HEADS, WIDTH // 2, 2)
        return linear(spread.reshape(rows, HIDDEN), self.last, None), step.exp()


def export(module: nn.Module, *args: Tensor) -> Part:
    with torch.device("meta"):
        return export_part(module, *args)


def names(run: Run) -> tuple[list[str], list[str]]:
    return [node.name for node in run.inputs], [node.name for node in run.outputs]


def follow(part: Part, found: list[Node | Run], inputs: dict[str, Tensor], rows: int) -> tuple[Tensor, ...]:
    """Executes steps, runs as modules for `rows` rows."""
    values: dict[Node, Any] = {}
    for step in found:
        if isinstance(step, Run):
            made = step.module(rows, {})(*(values[node] for node in step.inputs))
            for node, value, operand in zip(step.outputs, made, step.outputs, strict=True):
                assert tuple(value.shape) == step.shape(operand, rows)
                values[node] = value
        elif step.op == "placeholder":
            values[step] = inputs[part.parameters.get(step.name, step.name)]
        elif step.op == "output":
            return tuple(values[node] for node in step.args[0])
        else:
            args, kwargs = map_arg((step.args, step.kwargs), values.__getitem__)
            sized = ([rows, *value[1:]] if isinstance(value, list) else value for value in args)
            values[step] = step.target(*sized, **kwargs)
    raise AssertionError("no output")


def test_a_layer_is_found_as_runs_between_operators():
    part = export(Gated(), torch.empty(ROWS, HIDDEN))
    found = steps(part)
    runs = [step for step in found if isinstance(step, Run)]
    kinds = [str(step.target) for step in found if isinstance(step, Node) and step.op == "call_function"]
    assert [kind for kind in kinds if "aten" not in kind] == [
        "tandem.linear.default",
        "tandem.rms_norm.default",
        "tandem.linear.default",
    ]
    assert [names(run) for run in runs] == [
        (["linear", "p_shift", "p_decay"], ["mul", "mul_1"]),
        (["rms_norm", "mul_1", "mul", "p_norm"], ["mul_4"]),
        (["mul"], ["exp_1"]),
    ]
    assert all(run.rows == ROWS for run in runs)
    assert {"reshape"} == {step.name for step in found if isinstance(step, Node) and "aten" in str(step.target)}


@pytest.mark.parametrize("rows", [1, ROWS, 32])
def test_runs_compute_the_module_at_any_row_count(rows):
    part, module = export(Gated(), torch.empty(ROWS, HIDDEN)), Gated()
    torch.manual_seed(rows)
    for value in module.parameters():
        value.normal_()
    x = torch.randn(rows, HIDDEN)
    made = follow(part, steps(part), dict(module.named_parameters()) | {"x": x}, rows)
    for value, wanted in zip(made, module(x), strict=True):
        assert torch.equal(value, wanted)


def test_operands_may_have_types_of_their_own():
    run = next(step for step in steps(export(Gated(), torch.empty(ROWS, HIDDEN))) if isinstance(step, Run))
    decay, both, shift = torch.randn(HEADS), torch.randn(3, 2 * HIDDEN), torch.randn(HEADS)
    rounded = both.to(torch.bfloat16)
    exact = run.module(3, {})(rounded.float(), shift, decay)
    step, opened = run.module(3, {"linear": torch.bfloat16, "mul_1": torch.bfloat16})(rounded, shift, decay)
    assert (step.dtype, opened.dtype) == (torch.float32, torch.bfloat16)
    assert torch.equal(step, exact[0]) and torch.equal(opened, exact[1].to(torch.bfloat16))


SPEC = LlamaSpec("llama", 48, 112, 3, 6, 2, 8, 333, 1e-6, 2048, False, True, False, True, RopeSpec("default", 1e4))


@pytest.mark.parametrize("tree", [False, True])
def test_the_llama_family_has_no_glue(tree):
    parts = trace_pass(SPEC, find_profile("bf16"), 64, tree=tree)
    commit = trace_commit(SPEC, find_profile("bf16"), 64)
    for part in (parts.embed, parts.first, *parts.blocks.values(), parts.head, commit):
        found = steps(part)
        assert not any(isinstance(step, Run) for step in found)
        assert [step for step in part.graph.nodes if step in found] == found


class Formula(nn.Module):
    """sigmoid of a linear, put through `formula`, in front of a linear."""

    def __init__(self, formula: Callable[[Tensor, Tensor], Tensor], width: int) -> None:
        super().__init__()
        self.formula, self.w = formula, parameter(width, width)

    def forward(self, x: Tensor) -> Tensor:
        return linear(self.formula(linear(x, self.w, None).sigmoid(), self.w), self.w, None)


def formula_steps(formula: Callable[[Tensor, Tensor], Tensor], width: int = ROWS) -> list[Node | Run]:
    return steps(export(Formula(formula, width), torch.empty(ROWS, width)))


@pytest.mark.parametrize(
    ("formula", "words"),
    [
        (lambda x, w: x / x.sum(-1, keepdim=True), r"aten\.sum\.dim_IntList \(node sum_1\) is neither"),
        (lambda x, w: x.softmax(-1), r"aten\.softmax"),
        (lambda x, w: x.cumsum(0), r"aten\.cumsum"),
        (lambda x, w: x @ w, r"aten\.matmul"),
        (lambda x, w: torch.cat([x, x]).chunk(2)[0], r"aten\.cat"),
        (lambda x, w: x + torch.rand_like(x), r"aten\.rand"),
        (lambda x, w: x.add_(1.0), r"aten\.add_\.Tensor"),
        (lambda x, w: x + x.transpose(0, 1), r"aten\.transpose\.int \(node transpose\) moves rows"),
        (lambda x, w: x + x.permute(1, 0), r"aten\.permute\.default \(node permute\) moves rows"),
        (lambda x, w: x * x[3].unsqueeze(-1), r"\(node select\) moves rows"),
        (lambda x, w: x * x.unbind(0)[3].unsqueeze(-1), r"\(node unbind\) moves rows"),
        (lambda x, w: x + x[:, 0].expand(ROWS, ROWS), r"\(node expand\) moves rows"),
        (lambda x, w: x + x[:, 0], r"\(node add\) reads the rows of select \[13\] across its own"),
        (lambda x, w: x + x[:1], r"\(node slice_1\) is \[1, 13\] among 13 rows"),
        (lambda x, w: x + w, r"\(node add\) lays the weight p_w \[13, 13\] along rows"),
        (lambda x, w: (x * 2).view(-1)[0].exp().expand(ROWS, ROWS), r"\(node exp\) makes a single number"),
    ],
)  # fmt: skip
def test_what_mixes_rows_is_refused_by_name(formula, words):
    with pytest.raises(LoweringError, match=words):
        formula_steps(formula)


def test_rows_that_lie_apart_are_refused():
    with pytest.raises(LoweringError, match=r"\(node sigmoid_1\) makes rows that do not lie one behind the other"):
        formula_steps(lambda x, w: x.view(ROWS, 4, 5).transpose(1, 2).sigmoid().reshape(ROWS, 20), width=20)


def test_what_weights_alone_make_is_no_glue():
    class Scaled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.w, self.scale = parameter(WIDTH, WIDTH), parameter(WIDTH)

        def forward(self, x: Tensor) -> Tensor:
            return rms_norm(x, self.scale.exp(), 1e-5)

    with pytest.raises(LoweringError, match=r"\(node exp\) is made of weights alone and an operator reads it"):
        steps(export(Scaled(), torch.empty(ROWS, WIDTH)))


def test_what_nobody_reads_is_left_out():
    found = formula_steps(lambda x, w: (x.exp(), x)[1])
    (run,) = [step for step in found if isinstance(step, Run)]
    assert names(run)[1] == ["sigmoid"]
