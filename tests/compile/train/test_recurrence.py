"""Chunks in closed form against the recurrence as it is defined, a token at a time: values and gradients."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from tandem.compile.train.recurrence import delta_rule, inverse, scan


def sequential(q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor) -> Tensor:
    """The definition (engine facts, section 1.3)."""
    state = q.new_zeros(q.shape[0], q.shape[2], q.shape[3], v.shape[3])
    rows = []
    for t in range(q.shape[1]):
        state = state * g[:, t].exp()[..., None, None]
        u = beta[:, t, :, None] * (v[:, t] - (state * k[:, t, :, :, None]).sum(-2))
        state = state + k[:, t, :, :, None] * u[:, :, None]
        rows.append((state * q[:, t, :, :, None]).sum(-2))
    return torch.stack(rows, 1)


def inputs(seed: int, length: int, *, alike: bool = False, fast: float = 1.0) -> list[Tensor]:
    """q, k, v, g, beta of two sequences and three heads in float64; `alike` keys are all the same."""
    generator = torch.Generator().manual_seed(seed)
    q, k, v = (torch.randn(2, length, 3, d, generator=generator, dtype=torch.float64) for d in (8, 8, 12))
    k = k[:, :1].expand_as(k) if alike else k
    g = -fast * torch.rand(2, length, 3, generator=generator, dtype=torch.float64)
    beta = torch.ones_like(g) if alike else torch.rand(2, length, 3, generator=generator, dtype=torch.float64)
    unit = [torch.nn.functional.normalize(x, dim=-1) for x in (q, k)]
    return [x.clone().requires_grad_() for x in (*unit, v, g, beta)]


@given(st.integers(0, 99), st.integers(1, 70), st.sampled_from([8, 16, 32]), st.sampled_from([0.0, 0.1, 30.0]))
def test_chunks_agree_with_the_definition(seed: int, length: int, chunk: int, fast: float) -> None:
    given_ = inputs(seed, length, fast=fast)
    torch.testing.assert_close(delta_rule(*given_, chunk=chunk), sequential(*given_), rtol=0, atol=1e-11)


@pytest.mark.parametrize("length", [1, 16, 37])
def test_gradients_agree_with_those_of_the_definition(length: int) -> None:
    ours, theirs = inputs(1, length), inputs(1, length)
    weight = torch.randn(2, length, 3, 12, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    (delta_rule(*ours, chunk=16) * weight).sum().backward()
    (sequential(*theirs) * weight).sum().backward()
    for one, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one.grad, other.grad, rtol=0, atol=1e-10)


def test_equal_keys_lose_no_accuracy_in_float32() -> None:
    """Powers of the whole matrix would grow to some 1e17 here."""
    exact = inputs(3, 128, alike=True, fast=0.0)
    found = delta_rule(*(x.detach().float() for x in exact), chunk=64)
    torch.testing.assert_close(found.double(), sequential(*exact), rtol=0, atol=1e-4)


def test_custom_operators_keep_the_rules_of_torch() -> None:
    generator = torch.Generator().manual_seed(0)
    lower = torch.randn(2, 3, 16, 16, generator=generator, dtype=torch.float64).tril(-1).requires_grad_()
    checks = ("test_schema", "test_autograd_registration", "test_faketensor")
    torch.library.opcheck(inverse, (lower,), test_utils=checks)
    shapes = ((2, 3, 4, 16, 12), (2, 3, 4, 16, 8), (2, 3, 4, 16, 8), (2, 3, 4))
    parts = [0.3 * torch.randn(shape, generator=generator, dtype=torch.float64) for shape in shapes]
    torch.library.opcheck(scan, tuple(part.requires_grad_() for part in parts), test_utils=checks)
