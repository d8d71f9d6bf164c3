"""The draw as docs/sampling.md says it, in Python's own numbers: what tests hold `runtime.sampling` against.

Written from that page, and without numpy, whose arithmetic is what is checked.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence

from tandem.runtime.request import Sampling

LOW = (1 << 64) - 1
COEFFICIENTS = tuple(map(float.fromhex, ("0x1p+0", "0x1.62e42ap-1", "0x1.ebf9bcp-3", "0x1.c6b752p-5",
                                         "0x1.3cea88p-7", "0x1.5bba14p-10")))  # fmt: skip


def philox(key: Sequence[int], counter: Sequence[int]) -> list[int]:
    """A block of Philox4x64-10 from two words of key and four of counter: ten rounds, the key bumped between them."""
    x, k = list(counter), list(key)
    for _ in range(10):
        a, b = x[0] * 0xD2E7470EE14C6C93, x[2] * 0xCA5A826395121157
        x = [(b >> 64) ^ x[1] ^ k[0], b & LOW, (a >> 64) ^ x[3] ^ k[1], a & LOW]
        k = [(k[0] + 0x9E3779B97F4A7C15) & LOW, (k[1] + 0xBB67AE8584CAA73B) & LOW]
    return x


def fp32(value: float) -> float:
    """Rounded to fp32. One operation of fp32 values in float64, rounded so, is the operation of fp32."""
    try:
        return struct.unpack("<f", struct.pack("<f", value))[0]
    except OverflowError:
        return math.copysign(math.inf, value)


def scale_of(temperature: float) -> float:
    return fp32(1.4426950408889634 / min(max(temperature, 1e-30), 1e30))


def weight(logit: float, top: float, scale: float) -> int:
    x = max(fp32(fp32(logit - top) * scale), -100.0)
    whole = round(x)  # of two nearest ones the even one
    f = fp32(x - whole)
    power = COEFFICIENTS[5]
    for coefficient in COEFFICIENTS[4::-1]:
        power = fp32(fp32(power * f) + coefficient)
    return math.floor(math.ldexp(power, 40 + whole))


def drawn(logits: Sequence[float], sampling: Sampling, seed: int, position: int) -> int:
    """The id; `logits` are values of fp32."""
    if sampling.temperature == 0:
        return chosen(logits, 0.0, 0, 1 << 64, 0, 0)
    noise = philox((seed % 2**64, 0), (position + 1, 0, 0, 0))[0]
    # In whole 2^64ths of the whole: as exact as a float64 share itself, but for shares below 2^-11.
    share, least = math.ceil(sampling.top_p * 2.0**64), math.ceil(sampling.min_p * 2.0**40)
    return chosen(logits, scale_of(sampling.temperature), sampling.top_k, share, least, noise)


def chosen(logits: Sequence[float], scale: float, top_k: int, share: int, least: int, noise: int) -> int:
    """The same from what the page calls s, k, Q, the weight that `min_p` asks for, and N; s is 0 for the largest
    logit alone, Q is 2^64 without `top_p`."""
    values = [-math.inf if math.isnan(value) else value for value in logits]
    top = max(values)
    if scale == 0 or top == -math.inf:
        return values.index(top)
    if top == math.inf:
        values, top = [0.0 if value == top else -math.inf for value in values], 0.0
    ids = sorted(range(len(values)), key=lambda i: (-values[i], i))
    if 0 < top_k < len(values):
        ids = ids[:top_k]
    weights = {i: weight(values[i], top, scale) for i in ids}
    limit, before, kept = share * sum(weights.values()), 0, []
    for i in sorted(ids, key=lambda i: (-weights[i], i)):
        if before << 64 < limit:
            kept.append(i)
        before += weights[i]
    ids = sorted(i for i in kept if weights[i] >= least)
    left = noise * sum(weights[i] for i in ids) >> 64
    for i in ids:
        left -= weights[i]
        if left < 0:
            return i
    raise AssertionError("a share of the whole is less than the whole")
