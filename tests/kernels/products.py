"""What products are, in numpy: panels read as `panel.h` writes them down, rows rounded as their format asks for, and
every float operation in its place. Knows nothing of `tandem.compile.cpu.panels`.
"""

from __future__ import annotations

import numpy as np

PANEL = GROUP = 32
NIBBLES = PANEL * GROUP // 2
BLOCK = 128
LEAST_NORMAL = np.float32(2.0**-126)


def int8_views(stored: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Panels [P, bytes] -> raised bytes [P, K / 4, 32, 4] and scales [P, 32], both views."""
    weights, scales = stored[:, : -4 * PANEL], stored[:, -4 * PANEL :]
    return weights.reshape(len(stored), -1, PANEL, 4), scales.view(np.float32)


def int4_views(stored: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Panels [P, bytes] -> pairs of nibbles [P, G, 4, 32, 4] and scales and minima [P, G, 2, 32], both views."""
    groups = stored.reshape(len(stored), -1, NIBBLES + 4 * PANEL)
    pairs = groups[..., :NIBBLES].reshape(*groups.shape[:2], 4, PANEL, 4)
    return pairs, groups[..., NIBBLES:].view(np.float16).reshape(*groups.shape[:2], 2, PANEL)


def int8_weights(stored: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Whole numbers int64 [N, K] and scales [N], N and K padded."""
    raised, scales = int8_views(stored)
    return raised.transpose(0, 2, 1, 3).reshape(scales.size, -1).astype(np.int64) - 128, scales.reshape(-1)


def int4_weights(stored: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Nibbles int64 [N, G, 32], scales and minima fp32 [N, G], N padded."""
    pairs, reals = int4_views(stored)
    halves = np.stack((pairs & 15, pairs >> 4), axis=2)  # [P, G, 2, 4, 32, 4]
    nibbles = halves.transpose(0, 4, 1, 2, 3, 5).reshape(-1, pairs.shape[1], GROUP).astype(np.int64)
    scale, minimum = reals.astype(np.float32).transpose(2, 0, 3, 1).reshape(2, -1, pairs.shape[1])
    return nibbles, scale, minimum


def rounded_rows(x: np.ndarray, width: int) -> tuple[np.ndarray, np.ndarray]:
    """x [R, K] in spans of `width` inputs -> bytes int64 [R, S, width] and scales [R, S], what is missing zero."""
    spans = -(-x.shape[1] // width)
    padded = np.zeros((len(x), spans * width), np.float32)
    padded[:, : x.shape[1]] = x
    spanned = padded.reshape(len(x), spans, width)
    peak = np.abs(spanned).max(2)
    inverse = np.divide(np.float32(127), peak, out=np.zeros_like(peak), where=peak > 0)
    whole = np.clip(np.rint(spanned * inverse[..., None]), -127, 127)
    return whole.astype(np.int64), peak / np.float32(127)


def flushed(x: np.ndarray) -> np.ndarray:
    """Subnormal fp32 numbers become zeros of their sign."""
    return np.where(np.abs(x) < LEAST_NORMAL, np.copysign(np.float32(0), x), x).astype(np.float32)


def fma(a: np.ndarray, b: np.ndarray, c: np.ndarray) -> np.ndarray:
    """a * b + c of fp32 numbers, rounded once: in float64 the product is exact, the sum is rounded to odd.

    A result below the normal numbers is zero.
    """
    product, c = a.astype(np.float64) * b, c.astype(np.float64)
    total = product + c
    back = total - product
    lost = (product - (total - back)) + (c - back)
    inexact = (lost != 0) & (total.view(np.int64) & 1 == 0)
    odd = np.where(inexact, np.nextafter(total, np.copysign(np.inf, lost)), total)
    tiny = np.abs((odd * 2.0**64).astype(np.float32)) < 2.0**-62
    return np.where(tiny, np.copysign(0, odd), odd).astype(np.float32)


def bf16(x: np.ndarray) -> np.ndarray:
    """fp32 numbers rounded to the nearest bf16, ties to even, subnormal ones to zero."""
    bits = x.view(np.uint32).astype(np.uint64)
    bits = (bits + 0x7FFF + (bits >> 16 & 1)) & 0xFFFF0000
    return np.where(np.abs(x) < LEAST_NORMAL, np.copysign(np.float32(0), x), bits.astype(np.uint32).view(np.float32))


def _chain(x: np.ndarray, weight: np.ndarray, order: np.ndarray) -> np.ndarray:
    """x [R, K], weight [N, K] -> [R, N], inputs taken in `order`, in blocks whose sums are added in turn."""
    total = np.zeros((len(x), len(weight)), np.float32)
    for begin in range(0, len(order), BLOCK):
        block = np.zeros_like(total)
        for k in order[begin : begin + BLOCK]:
            block = fma(np.broadcast_to(x[:, k, None], total.shape), weight[:, k], block)
        total = flushed(total + block)
    return total


def fp32_product(x: np.ndarray, stored: np.ndarray) -> np.ndarray:
    """x [R, K], panels [P, K, 32] -> [R, N], N padded."""
    weight = stored.transpose(0, 2, 1).reshape(-1, x.shape[1])
    return _chain(flushed(x), flushed(weight), np.arange(x.shape[1]))


def bf16_product(x: np.ndarray, stored: np.ndarray) -> np.ndarray:
    """x [R, K], panels of pairs [P, K / 2, 32, 2] -> [R, N], N padded: of a pair the second comes first."""
    bits = stored.reshape(len(stored), -1, PANEL, 2).transpose(0, 2, 1, 3).reshape(len(stored) * PANEL, -1)
    weight = (bits.astype(np.uint32) << 16).view(np.float32)
    padded = np.zeros((len(x), weight.shape[1]), np.float32)
    padded[:, : x.shape[1]] = bf16(x)
    return _chain(padded, weight, np.arange(weight.shape[1]) ^ 1)


def int8_product(x: np.ndarray, stored: np.ndarray) -> np.ndarray:
    """x [R, K] -> fp32 [R, N], N padded."""
    weight, scale = int8_weights(stored)
    whole, row_scale = rounded_rows(x, x.shape[1])
    sums = whole[:, 0] @ weight[:, : x.shape[1]].T
    return sums.astype(np.float32) * scale * row_scale


def int4_product(x: np.ndarray, stored: np.ndarray) -> np.ndarray:
    """x [R, K] -> fp32 [R, N], N padded: two fused multiply-adds per group, in order."""
    nibbles, scale, minimum = int4_weights(stored)
    whole, row_scale = rounded_rows(x, GROUP)
    total = np.zeros((len(x), len(nibbles)), np.float32)
    for g in range(whole.shape[1]):
        sums = (whole[:, g] @ nibbles[:, g].T).astype(np.float32)
        total = fma(sums, scale[:, g] * row_scale[:, g, None], total)
        weighed = row_scale[:, g] * whole[:, g].sum(1).astype(np.float32)
        total = fma(np.broadcast_to(minimum[:, g], total.shape), weighed[:, None], total)
    return total


PRODUCTS = {"fp32": fp32_product, "bf16": bf16_product, "int8": int8_product, "int4": int4_product}
