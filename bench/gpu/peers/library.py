"""The fastest that torch offers for each operator of a step: cuBLAS, SDPA over a static cache, eager norms.

Every call has its own data, so that a graph over all of them reads memory as a model does.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import linear, rms_norm, scaled_dot_product_attention

from bench.gpu.timing import Call, graph_us

BACKENDS = (SDPBackend.FLASH_ATTENTION, SDPBackend.CUDNN_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH)


def linears(x: Tensor, weights: list[Tensor]) -> list[Call]:
    """x [M, K] bf16 against each of weights [N, K] bf16."""
    return [partial(linear, x, weight) for weight in weights]


def attentions(q: Tensor, caches: list[tuple[Tensor, Tensor]]) -> list[Call]:
    """q [M, H, D] against each K and V [KVH, T, D], all T visible; by the backend that is fastest here."""
    query = q.transpose(0, 1)[None]

    def play(backend: SDPBackend, key: Tensor, value: Tensor) -> Tensor:
        with sdpa_kernel([backend]):
            return scaled_dot_product_attention(query, key[None], value[None], enable_gqa=True)

    sides = [[partial(play, backend, key, value) for key, value in caches] for backend in BACKENDS]
    return fastest(sides)


def norms(hidden: list[Tensor], weight: Tensor, eps: float) -> list[Call]:
    """Each hidden [M, N] fp32, normed and rounded to bf16: torch's own operator, or the formula spelled out."""

    def spelled(x: Tensor) -> Tensor:
        return (weight * (x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps))).bfloat16()

    def whole(x: Tensor) -> Tensor:
        return rms_norm(x, (x.shape[-1],), weight, eps).bfloat16()

    return fastest([[partial(way, x) for x in hidden] for way in (whole, spelled)])


def fastest(sides: list[list[Callable[[], Tensor]]]) -> list[Call]:
    """The side whose graph takes the least time; one that cannot run here is left out. RuntimeError if none can."""
    found: list[tuple[float, list[Callable[[], Tensor]]]] = []
    for side in sides:
        try:
            found.append((graph_us(side, repeats=5).median, side))
        except RuntimeError:  # torch says so where a backend takes no such heads
            torch.cuda.synchronize()
    if not found:
        raise RuntimeError("torch offers no operator for these sizes")
    return list(min(found, key=lambda pair: pair[0])[1])
