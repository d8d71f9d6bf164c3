"""Rounding of weights to few bits: whole numbers and the reals that turn them back.

Knows nothing of layouts. Letters: N outputs, K inputs, G groups.
"""

from __future__ import annotations

import torch
from torch import Tensor

MIDDLE = 128
"""Raises int8 weights to unsigned bytes, as the products take them."""
MOST_NIBBLE = 15
REFINEMENTS = 2


def int8_rows(weight: Tensor) -> tuple[Tensor, Tensor]:
    """weight [N, K] fp32 -> uint8 [N, K] and scale [N]: weight is about (byte - 128) * scale, symmetric per output."""
    scale = weight.abs().amax(1) / 127
    divisor = torch.where(scale > 0, scale, 1.0)
    return ((weight / divisor[:, None]).round() + MIDDLE).to(torch.uint8), scale


def int4_groups(weight: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """weight [N, G, 32] fp32 -> nibbles uint8 [N, G, 32], scale and minimum fp16 [N, G].

    weight is about nibble * scale + minimum. The grid spans the group's least to its largest weight; then scale and
    minimum are fitted to the nibbles by least squares and the nibbles taken anew, kept where the error falls.
    """
    low, high = weight.aminmax(dim=2)
    best = _rounded(weight, (high - low) / MOST_NIBBLE, low)
    error = _error(weight, *best)
    for _ in range(REFINEMENTS):
        fitted = _rounded(weight, *_fit(weight, best[0].float()))
        found = _error(weight, *fitted)
        better = found < error
        error = torch.where(better, found, error)
        best = (
            torch.where(better[..., None], fitted[0], best[0]),
            torch.where(better, fitted[1], best[1]),
            torch.where(better, fitted[2], best[2]),
        )
    return best


def _rounded(weight: Tensor, scale: Tensor, minimum: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    scale, minimum = scale.half(), minimum.half()
    divisor = torch.where(scale != 0, scale.float(), 1.0)
    nibble = ((weight - minimum.float()[..., None]) / divisor[..., None]).round().clamp(0, MOST_NIBBLE)
    return nibble.to(torch.uint8), scale, minimum


def _error(weight: Tensor, nibble: Tensor, scale: Tensor, minimum: Tensor) -> Tensor:
    """Sum of squares per group [N, G]."""
    return (nibble.float() * scale.float()[..., None] + minimum.float()[..., None] - weight).square().sum(2)


def _fit(weight: Tensor, nibble: Tensor) -> tuple[Tensor, Tensor]:
    """Scale and minimum of least squares for given nibbles; a group of one nibble keeps scale 0."""
    x, y = nibble.mean(2, keepdim=True), weight.mean(2, keepdim=True)
    spread = (nibble - x).square().sum(2)
    scale = ((nibble - x) * (weight - y)).sum(2) / torch.where(spread > 0, spread, 1.0)
    return scale, y[..., 0] - scale * x[..., 0]
