"""The gated delta rule in closed form, chunk by chunk: what our recurrence, row by row, is held against for speed.

Within a chunk of rows, with gc the sums of log decays from the chunk's first row on and D_ij = exp(gc_i - gc_j) where
row j is i or above it: T = (1 - A)^-1 with A_ij = -beta_i (k_i . k_j) D_ij above i, u = T beta (v - exp(gc) S^T k),
o = exp(gc) S^T q + sum of (q_i . k_j) D_ij u_j, and S moves on by exp(gc_last - gc_j) k_j u_j^T (Yang, Kautz,
Hatamizadeh, "Gated Delta Networks", 2024). A tree is a chunk whose rows see their ancestors only. Products are of the
inputs' own type: it rounds where the exact recurrence does not, and no row has the bits of a step.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
import triton
import triton.language as tl
from torch import Tensor

CHUNK = 64
"""Rows of a prompt's chunk."""


@triton.jit
def _solved(a, ROWS: tl.constexpr, SQUARINGS: tl.constexpr):
    """(1 - a)^-1 of a [ROWS, ROWS] whose powers vanish: (1 + a)(1 + a^2)(1 + a^4) and so on."""
    i = tl.arange(0, ROWS)
    found, power = a + tl.where(i[:, None] == i[None, :], 1.0, 0.0), a
    for _ in tl.static_range(SQUARINGS):
        power = tl.dot(power, power, input_precision="tf32")
        found += tl.dot(power, found, input_precision="tf32")
    return found


@triton.jit
def _within(k, g, b, sees, ROWS: tl.constexpr, SQUARINGS: tl.constexpr):
    """(T, gc, D) of a chunk's keys [ROWS, DK], log decays and betas [ROWS], and of which rows each row sees."""
    i = tl.arange(0, ROWS)
    gc = tl.sum(tl.where(sees, g[None, :], 0.0), 1)
    fading = tl.where(sees, tl.exp(tl.where(sees, gc[:, None] - gc[None, :], 0.0)), 0.0)
    above = tl.where(i[:, None] != i[None, :], fading, 0.0)
    a = -b[:, None] * tl.dot(k, tl.trans(k), input_precision="tf32") * above
    return _solved(a, ROWS, SQUARINGS), gc, fading


@triton.jit
def verify(
    q, k, v, g, beta, path, state, y,
    ROWS: tl.constexpr, SQUARINGS: tl.constexpr, HEADS: tl.constexpr, KEY_HEADS: tl.constexpr, DK: tl.constexpr,
    DV: tl.constexpr, BV: tl.constexpr,
):  # fmt: skip
    """q and k [ROWS, KEY_HEADS, DK], v [ROWS, HEADS, DV] of one type; g and beta [ROWS, HEADS] fp32; path [ROWS] int32,
    the bits of a row's ancestors and its own; state [HEADS, DK, DV] fp32, left -> y [ROWS, HEADS, DV] fp32.

    Grid (HEADS, DV / BV).
    """
    head, i, d, c = tl.program_id(0), tl.arange(0, ROWS), tl.arange(0, DK), tl.program_id(1) * BV + tl.arange(0, BV)
    held = tl.load(state + head * DK * DV + d[:, None] * DV + c[None, :]).to(k.dtype.element_ty)
    keyed = (i[:, None] * KEY_HEADS + head // (HEADS // KEY_HEADS)) * DK + d[None, :]
    keys, queries = tl.load(k + keyed), tl.load(q + keyed)
    valued, gated = (i[:, None] * HEADS + head) * DV + c[None, :], i * HEADS + head
    values, b = tl.load(v + valued).to(tl.float32), tl.load(beta + gated)
    sees = ((tl.load(path + i)[:, None] >> i[None, :]) & 1) == 1
    t, gc, fading = _within(keys, tl.load(g + gated), b, sees, ROWS, SQUARINGS)
    entry = tl.exp(gc)[:, None]
    u = b[:, None] * (values - entry * tl.dot(keys, held, input_precision="tf32"))
    u = tl.dot(t, u, input_precision="tf32").to(k.dtype.element_ty)
    seen = (tl.dot(queries, tl.trans(keys), input_precision="tf32") * fading).to(k.dtype.element_ty)
    o = entry * tl.dot(queries, held, input_precision="tf32") + tl.dot(seen, u, input_precision="tf32")
    tl.store(y + valued, o)


@triton.jit
def prepare(
    q, k, v, g, beta, w, u, seen, total,
    ROWS: tl.constexpr, SQUARINGS: tl.constexpr, HEADS: tl.constexpr, KEY_HEADS: tl.constexpr, DK: tl.constexpr,
    DV: tl.constexpr,
):  # fmt: skip
    """What of each chunk of ROWS rows needs no state: w = T beta exp(gc) k [rows, HEADS, DK] and u = T beta v
    [rows, HEADS, DV] in the inputs' type, seen = (q . k) D [HEADS, rows, ROWS] likewise, and gc, `total`, [rows, HEADS]
    fp32. Grid (chunks, HEADS)."""
    head, i, d, c = tl.program_id(1), tl.arange(0, ROWS), tl.arange(0, DK), tl.arange(0, DV)
    row = tl.program_id(0) * ROWS + i
    keyed = (row[:, None] * KEY_HEADS + head // (HEADS // KEY_HEADS)) * DK + d[None, :]
    valued, gated = (row[:, None] * HEADS + head) * DV + c[None, :], row * HEADS + head
    keys, b, sees = tl.load(k + keyed), tl.load(beta + gated), i[:, None] >= i[None, :]
    t, gc, fading = _within(keys, tl.load(g + gated), b, sees, ROWS, SQUARINGS)
    t = t.to(k.dtype.element_ty)
    weighted = ((b * tl.exp(gc))[:, None] * keys.to(tl.float32)).to(k.dtype.element_ty)
    own = (b[:, None] * tl.load(v + valued).to(tl.float32)).to(k.dtype.element_ty)
    at = (row[:, None] * HEADS + head) * DK + d[None, :]
    tl.store(w + at, tl.dot(t, weighted, input_precision="tf32").to(k.dtype.element_ty))
    tl.store(u + valued, tl.dot(t, own, input_precision="tf32").to(k.dtype.element_ty))
    scores = tl.dot(tl.load(q + keyed), tl.trans(keys), input_precision="tf32") * fading
    rows = tl.num_programs(0) * ROWS
    tl.store(seen + (head * rows + row[:, None]) * ROWS + i[None, :], scores.to(k.dtype.element_ty))
    tl.store(total + gated, gc)


@triton.jit
def walk(
    q, k, w, u, seen, total, state, y, chunks,
    ROWS: tl.constexpr, HEADS: tl.constexpr, KEY_HEADS: tl.constexpr, DK: tl.constexpr, DV: tl.constexpr,
    BV: tl.constexpr,
):  # fmt: skip
    """The chunks of `prepare` one behind the other: y [rows, HEADS, DV] fp32, and the state behind the last row.

    Grid (HEADS, DV / BV).
    """
    head, i, d, c = tl.program_id(0), tl.arange(0, ROWS), tl.arange(0, DK), tl.program_id(1) * BV + tl.arange(0, BV)
    place = state + head * DK * DV + d[:, None] * DV + c[None, :]
    held = tl.load(place)
    for chunk in range(chunks):
        row = chunk * ROWS + i
        keyed = (row[:, None] * KEY_HEADS + head // (HEADS // KEY_HEADS)) * DK + d[None, :]
        valued, gated = (row[:, None] * HEADS + head) * DV + c[None, :], row * HEADS + head
        before, gc = held.to(k.dtype.element_ty), tl.load(total + gated)
        corrected = tl.load(w + (row[:, None] * HEADS + head) * DK + d[None, :])
        own = tl.load(u + valued).to(tl.float32) - tl.dot(corrected, before, input_precision="tf32")
        scores = tl.load(seen + (head * chunks * ROWS + row[:, None]) * ROWS + i[None, :])
        o = tl.exp(gc)[:, None] * tl.dot(tl.load(q + keyed), before, input_precision="tf32")
        tl.store(y + valued, o + tl.dot(scores, own.to(k.dtype.element_ty), input_precision="tf32"))
        last = tl.load(total + (chunk * ROWS + ROWS - 1) * HEADS + head)
        faded = (tl.exp(last - gc)[:, None] * own).to(k.dtype.element_ty)
        held = tl.exp(last) * held + tl.dot(tl.trans(tl.load(k + keyed)), faded, input_precision="tf32")
    tl.store(place, held)


@dataclass(frozen=True, slots=True)
class Rows:
    """One layer's rows: q and k [rows, Hk, dk], v [rows, Hv, dv] of one type, g (log decays) and beta [rows, Hv] fp32.

    Keys are of length one and queries of 1 / sqrt(dk).
    """

    q: Tensor
    k: Tensor
    v: Tensor
    g: Tensor
    beta: Tensor

    @property
    def sizes(self) -> dict[str, int]:
        return {"HEADS": self.v.shape[1], "KEY_HEADS": self.k.shape[1], "DK": self.k.shape[2], "DV": self.v.shape[2]}


def verify_call(rows: Rows, path: Tensor, state: Tensor, y: Tensor, columns: int, warps: int) -> Callable[[], object]:
    """A verify of 16 or 32 rows behind `state`, `columns` of a head in a program."""
    count, width = rows.v.shape[0], rows.v.shape[2]
    play = verify[(rows.v.shape[1], width // columns)]
    constants = {"ROWS": count, "SQUARINGS": count.bit_length() - 2, "BV": columns, **rows.sizes}
    given = (rows.q, rows.k, rows.v, rows.g, rows.beta, path, state, y)
    return partial(play, *given, **constants, num_warps=warps)


def prompt_call(
    rows: Rows, state: Tensor, y: Tensor, columns: int, warps: int, chunk: int = CHUNK
) -> Callable[[], object]:
    """Whole chunks of a prompt behind `state`, which they move on."""
    (count, heads, width), dk = rows.v.shape, rows.k.shape[2]
    assert count % chunk == 0, f"{count} rows in chunks of {chunk}"
    w, u = rows.v.new_empty(count, heads, dk), torch.empty_like(rows.v)
    seen, total = rows.v.new_empty(heads, count, chunk), torch.empty_like(rows.g)
    shared = {"ROWS": chunk, **rows.sizes}

    def play() -> None:
        given = (rows.q, rows.k, rows.v, rows.g, rows.beta, w, u, seen, total)
        prepare[(count // chunk, heads)](*given, SQUARINGS=chunk.bit_length() - 2, **shared, num_warps=4)
        given = (rows.q, rows.k, w, u, seen, total, state, y, count // chunk)
        walk[(heads, width // columns)](*given, BV=columns, **shared, num_warps=warps, num_stages=2)

    return play
