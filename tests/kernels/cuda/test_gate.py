"""Gates of attention and of the recurrence on CUDA against float64, with poison where nobody asked for anything."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from tandem import kernels
from tandem.kernels.cuda.gate import gated_rms_norm_work
from tests.kernels.cuda.interpreter import interpreted, run
from tests.kernels.cuda.paged import ints
from tests.kernels.recurrent import normal

EPS = 1e-5
BF16, FP32 = torch.bfloat16, torch.float32
TOLERANCE = {FP32: 2e-6, BF16: 2**-7}  # the interpreter cuts bf16 off where a GPU rounds


def held(x: Tensor, rows: int, pad: int) -> Tensor:
    """x [count, N] as the first of `rows` rows of N + pad; NaN elsewhere."""
    wide = torch.full((rows, x.shape[1] + pad), torch.nan, dtype=x.dtype)
    wide[: len(x), : x.shape[1]] = x
    return wide


@pytest.mark.parametrize("dtype", [FP32, BF16])
@pytest.mark.parametrize("width", [1, 96, 1030])
def test_sigmoid_gate(width: int, dtype: torch.dtype) -> None:
    x, gate = 3 * normal(1, 3, width, dtype=dtype), 8 * normal(2, 3, width, dtype=FP32)
    module, y = interpreted("gate"), torch.full((5, width + 2), torch.nan, dtype=dtype)
    work = module.sigmoid_gate_work(5, width, width + 3, width + 4, width + 2)
    run(module.sigmoid_gate, work, x=held(x, 5, 3), gate=held(gate, 5, 4), count=ints([3]), y=y)
    wanted = kernels.sigmoid_gate(x.double(), gate.double())
    torch.testing.assert_close(y[:3, :width].double(), wanted, rtol=TOLERANCE[dtype], atol=1e-6)
    assert y[3:].isnan().all() and y[:, width:].isnan().all()


def gated(x: Tensor, gate: Tensor, weight: Tensor, rounded: bool, bucket: int, dtype: torch.dtype) -> Tensor:
    """[count, heads, D] by the kernel, in a pass of `bucket` rows."""
    count, heads, width = x.shape
    module, y = interpreted("gate"), torch.full((bucket, heads * width + 2), torch.nan, dtype=dtype)
    work = module.gated_rms_norm_work(
        rows=bucket, heads=heads, width=width, eps=EPS, rounded=rounded, x_stride=heads * width + 3,
        gate_stride=heads * width + 4, y_stride=y.stride(0),
    )  # fmt: skip
    told = {"x": held(x.flatten(1), bucket, 3), "gate": held(gate.flatten(1), bucket, 4), "weight": weight}
    run(module.gated_rms_norm, work, count=ints([count]), y=y, **told)
    assert y[count:].isnan().all() and y[:, heads * width :].isnan().all()
    return y[:count, : heads * width].unflatten(1, (heads, width))


@pytest.mark.parametrize("dtype", [FP32, BF16])
@pytest.mark.parametrize(("heads", "width"), [(1, 1), (3, 20), (2, 128), (1, 130)])
def test_gated_rms_norm(heads: int, width: int, dtype: torch.dtype) -> None:
    x, gate = 3 * normal(1, 3, heads, width, dtype=FP32), 4 * normal(2, 3, heads, width, dtype=FP32)
    weight = 1 + normal(3, width, dtype=FP32)
    wanted = kernels.gated_rms_norm(x.double(), gate.double(), weight.double(), EPS, False)
    found = gated(x, gate, weight, False, 4, dtype)
    torch.testing.assert_close(found.double(), wanted, rtol=TOLERANCE[dtype], atol=1e-6)
    assert torch.equal(gated(x[1:2], gate[1:2], weight, False, 1, dtype)[0], found[1])


def test_the_norm_is_rounded_before_its_gate() -> None:
    """A norm of ones and tiny steps between numbers of bf16: what is left behind rounding are those numbers."""
    x, gate = torch.ones(1, 1, 4), torch.full((1, 1, 4), 3.0)
    weight = torch.tensor([1.0, 1 + 2**-7, 1 + 2**-7 + 2**-10, 2 - 2**-6]) * (1 + EPS) ** 0.5
    found = gated(x, gate, weight, True, 1, FP32)[0, 0].double() / (3 / (1 + np.exp(-3)))
    cut = (found * 2**7).numpy()
    np.testing.assert_allclose(cut, np.round(cut), atol=1e-4)  # seven bits behind the point are kept
    np.testing.assert_allclose(found, weight.double(), rtol=2**-7)


@pytest.mark.parametrize("width", [1, 64, 128, 200, 5000])
def test_the_width_alone_makes_the_launch_of_a_norm(width: int) -> None:
    works = [
        gated_rms_norm_work(
            rows=rows, heads=2, width=width, eps=EPS, rounded=True, x_stride=1, gate_stride=1, y_stride=1
        )
        for rows in (1, 32, 2048)
    ]
    assert len({(work.constants, work.num_warps) for work in works}) == 1
    assert [work.grid for work in works] == [(1, 2, 1), (32, 2, 1), (2048, 2, 1)]


def test_gates_of_the_recurrence_hold_over_all_of_their_range() -> None:
    """Where softplus is tiny, where it is the identity, and where a decay is all but one or nothing."""
    a = torch.tensor([[-100.0, -30.0, -10.0, -1.0, -1e-3, 0.0, 1.0, 5.0, 19.9, 20.1, 80.0]])
    b, heads = torch.linspace(-80, 80, a.shape[1])[None], a.shape[1]
    a_log, dt_bias = torch.linspace(-6, 3, heads), torch.linspace(-0.5, 0.5, heads)
    decay, beta = torch.full((2, heads), torch.nan), torch.full((2, heads), torch.nan)
    module, zero = interpreted("recurrent_inputs"), ints([0, 0])
    work = module.recurrent_inputs_work(
        rows=2, verify=False, tree=False, width=2, key_heads=1, dk=1, channels=2 + heads, heads=heads,
        x_stride=2 + heads, ab_stride=heads, slot=2 + heads,
    )  # fmt: skip
    run(
        module.recurrent_inputs, work, x=torch.zeros(2, 2 + heads), weight=torch.zeros(2, 2 + heads), a=held(a, 2, 0),
        b=held(b, 2, 0), a_log=a_log, dt_bias=dt_bias, state_slot=zero, lane=zero, position=zero, parent=zero - 1,
        count=ints([1]), tail=torch.zeros(1, 1, 2 + heads), raw=None, k_factor=None, decay=decay, beta=beta,
        y=torch.zeros(2, 2 + heads),
    )  # fmt: skip
    rate = np.logaddexp(0.0, a.double().numpy() + dt_bias.double().numpy())
    g = -np.exp(a_log.double().numpy()) * rate
    np.testing.assert_allclose(decay[:1], np.exp(g), rtol=1e-4, atol=1e-30)
    np.testing.assert_allclose(1 - decay[:1].double().numpy(), -np.expm1(g), rtol=1e-5, atol=1e-7)
    np.testing.assert_allclose(beta[:1], 1 / (1 + np.exp(-b.double().numpy())), rtol=1e-5, atol=1e-30)
    assert decay[1:].isnan().all() and beta[1:].isnan().all()
