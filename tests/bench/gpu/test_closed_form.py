"""The closed form is the delta rule: chains, trees and prompts against the definition in float64, interpreted."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest
import torch
import triton
from torch import Tensor

from tandem import kernels
from tests.kernels.cuda.interpreter import _library_interpreted
from tests.kernels.recurrent import Rows as Where
from tests.kernels.recurrent import normal

NAME = "bench.gpu.peers.closed_form"
KEY_HEADS, HEADS, DK, DV = 1, 2, 16, 32


class Alone:
    """A kernel each launch of which finds Triton's language as it was."""

    def __init__(self, kernel: Any) -> None:
        self._kernel = kernel

    def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., None]:
        def play(*given: Any, **constants: Any) -> None:
            with _library_interpreted():
                self._kernel[grid](*given, **constants)

        return play


@pytest.fixture(scope="module")
def closed_form() -> ModuleType:
    """The module with interpreted functions; the usual import stays as it was."""
    usual, before = sys.modules.pop(NAME, None), triton.knobs.runtime.interpret
    triton.knobs.runtime.interpret = True
    try:
        module = importlib.import_module(NAME)
        for kernel in ("verify", "prepare", "walk"):
            setattr(module, kernel, Alone(getattr(module, kernel)))
        return module
    finally:
        triton.knobs.runtime.interpret = before
        del sys.modules[NAME]
        if usual is not None:
            sys.modules[NAME] = usual


def drawn(count: int) -> tuple[Tensor, ...]:
    """q, k, v, log decays and betas in fp32, as they come before they are brought to length one, and a state."""
    q, k = (normal(seed, count, KEY_HEADS, DK, dtype=torch.float32) for seed in (1, 2))
    v, g = normal(3, count, HEADS, DV, dtype=torch.float32), -normal(4, count, HEADS, dtype=torch.float32).abs()
    return q, k, v, g, normal(5, count, HEADS, dtype=torch.float32).sigmoid(), normal(6, HEADS, DK, DV).float()


def rows_of(module: ModuleType, q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor) -> Any:
    unit = torch.nn.functional.normalize
    return module.Rows(unit(q, dim=-1) * DK**-0.5, unit(k, dim=-1), v, g, beta)


def defined(parents: list[int], q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, state: Tensor) -> Tensor:
    """o by the definition, row by row, in float64."""
    where, states = Where.of({0: parents}, [5], [0]).where, state.double()[None].clone()
    factors = [torch.empty(shape.shape, dtype=torch.float64) for shape in (k, v, g)]
    wide = (x.double() for x in (q, k, v, g.exp(), beta))
    return kernels.delta_verify(*wide, states, *where, *factors, True)


TREE = (-1, 0, 1, 2, 1, 4, 0, 6, 7, 8, 6, 10, 0, 12, 13, 2)


@pytest.mark.parametrize("alike", [False, True], ids=["any", "alike"])
@pytest.mark.parametrize("parents", [TREE, tuple(range(-1, 15))], ids=["tree", "chain"])
def test_a_verify_sees_what_each_row_stands_behind(
    closed_form: ModuleType, parents: tuple[int, ...], alike: bool
) -> None:
    """Also where all keys are alike and nothing fades, so that every row corrects all that stand above it."""
    from bench.gpu.delta_peer import paths

    q, k, v, g, beta, state = drawn(len(parents))
    if alike:
        k, g, beta = k[:1].expand_as(k).contiguous(), torch.zeros_like(g), torch.full_like(beta, 0.9)
    inputs = (q, k, v, g, beta)
    y, kept = torch.full((len(parents), HEADS, DV), torch.nan), state.clone()
    closed_form.verify_call(rows_of(closed_form, *inputs), paths(list(parents)), state, y, 16, 4)()
    torch.testing.assert_close(y.double(), defined(list(parents), *inputs, state), rtol=2e-4, atol=2e-5)
    assert torch.equal(state, kept)


def test_a_prompt_goes_on_from_chunk_to_chunk_and_leaves_the_state_behind_it(closed_form: ModuleType) -> None:
    count, chunk = 48, 16
    *inputs, state = drawn(count)
    wanted = defined(list(range(-1, count - 1)), *inputs, state)
    moved = state.double()[None].clone()
    line = Where.of({0: list(range(-1, count - 1))}, [5], [0]).where
    q, k, v, g, beta = (x.double() for x in inputs)
    kernels.delta_rule(q, k, v, g.exp(), beta, moved, *line)
    y = torch.full((count, HEADS, DV), torch.nan)
    closed_form.prompt_call(rows_of(closed_form, *inputs), state, y, 32, 4, chunk)()
    torch.testing.assert_close(y.double(), wanted, rtol=2e-4, atol=2e-5)
    torch.testing.assert_close(state.double(), moved[0], rtol=2e-4, atol=2e-5)
