"""The gated delta rule over whole sequences for training: chunks in closed form, states passed on between them.

Agrees with serving's token-by-token recurrence to rounding, not to the bit. Letters: B sequences, T tokens, H heads,
N chunks of C tokens, M = B * H; dk and dv as elsewhere. All in float32 (float64 in tests).
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

CHUNK = 64
_LEAF = 8


def delta_rule(q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, chunk: int = CHUNK) -> Tensor:
    """o [B, T, H, dv] of q, k [B, T, H, dk] (k of length one), v [B, T, H, dv], g (log of decay) and beta [B, T, H].

    Every sequence begins with a state of zeros. Engine facts, section 1.4.
    """
    length = q.shape[1]
    q, k, v, g, beta = (_chunks(x, chunk) for x in (q, k, v, g, beta))  # [M, N, C, ...]
    total = g.cumsum(-1)
    lower = torch.ones(chunk, chunk, dtype=torch.bool, device=q.device).tril()
    decay = (total[..., :, None] - total[..., None, :]).masked_fill(~lower, float("-inf")).exp()  # [M, N, C, C]
    between = (-beta[..., None] * (k @ k.mT) * decay).tril(-1)
    solve = inverse(between)
    u0, w = solve @ (beta[..., None] * v), solve @ ((beta * total.exp())[..., None] * k)
    last = total[..., -1:]
    state, u = scan(u0, w, k * (last - total).exp()[..., None], last.squeeze(-1).exp())
    o = (q * total.exp()[..., None]) @ state + ((q @ k.mT) * decay) @ u
    return _joined(o, length)


def _chunks(x: Tensor, chunk: int) -> Tensor:
    """[B, T, H, ...] as [B, H, N, C, ...]; what is padded has beta 0 and decay 1, so it changes no state."""
    batch, length, heads = x.shape[:3]
    pad = -length % chunk
    if pad:
        x = F.pad(x, (0,) * (2 * (x.ndim - 2)) + (0, pad))
    return x.transpose(1, 2).reshape(batch, heads, -1, chunk, *x.shape[3:])


def _joined(x: Tensor, length: int) -> Tensor:
    return x.flatten(2, 3)[:, :, :length].transpose(1, 2)


@torch.library.custom_op("tandem_train::inverse", mutates_args=())
def inverse(lower: Tensor) -> Tensor:
    """(1 - lower)^-1 of strictly lower triangular [..., C, C], C a power of two from 8 up.

    Blocks of 8 by their power series, then pairs of blocks merged: what grows in a long series cannot grow here.
    Its products are never in lower precision than its input.
    """
    precision = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")
    try:
        with torch.autocast(lower.device.type, enabled=False):
            return _inverse(lower)
    finally:
        torch.set_float32_matmul_precision(precision)


def _inverse(lower: Tensor) -> Tensor:
    size = lower.shape[-1]
    blocks = _diagonal(lower, _LEAF, 0)  # [..., C / 8, 8, 8]
    eye = torch.eye(_LEAF, dtype=lower.dtype, device=lower.device)
    square = blocks @ blocks
    solved = (eye + blocks) @ (eye + square) @ (eye + square @ square)
    width = _LEAF
    while width < size:
        first, second = solved[..., 0::2, :, :], solved[..., 1::2, :, :]
        corner = second @ _diagonal(lower, width, 1) @ first
        top = torch.cat((first, torch.zeros_like(first)), -1)
        solved = torch.cat((top, torch.cat((corner, second), -1)), -2)
        width *= 2
    return solved.reshape(lower.shape)


def _diagonal(matrix: Tensor, width: int, below: int) -> Tensor:
    """Blocks [..., count, width, width]: those of the diagonal, or with `below` the lower left ones of block pairs."""
    count = matrix.shape[-1] // width
    blocks = matrix.reshape(*matrix.shape[:-2], count, width, count, width).transpose(-2, -3)
    rows = torch.arange(below, count, 1 + below, device=matrix.device)
    return blocks[..., rows, rows - below, :, :]


@inverse.register_fake
def _(lower: Tensor) -> Tensor:
    return torch.empty_like(lower, memory_format=torch.contiguous_format)


def _keep_inverse(ctx: Any, inputs: tuple[Tensor], output: Tensor) -> None:
    ctx.save_for_backward(output)


def _inverse_gradient(ctx: Any, gradient: Tensor) -> Tensor:
    (solved,) = ctx.saved_tensors
    return (solved.mT @ gradient @ solved.mT).tril(-1)


inverse.register_autograd(_inverse_gradient, setup_context=_keep_inverse)


@torch.library.custom_op("tandem_train::scan", mutates_args=())
def scan(u0: Tensor, w: Tensor, k: Tensor, decay: Tensor) -> tuple[Tensor, Tensor]:
    """Over chunks: u = u0 - w S, then S = decay S + k^T u. Returns S before every chunk [..., N, dk, dv] and u.

    u0 [..., N, C, dv], w and k [..., N, C, dk], decay [..., N].
    """
    state = u0.new_empty(*u0.shape[:-2], w.shape[-1], u0.shape[-1])
    u = torch.empty_like(u0, memory_format=torch.contiguous_format)
    flat_u0, flat_w, flat_k = (x.flatten(0, -4) for x in (u0, w, k))
    factor = decay.flatten(0, -2)[..., None, None]
    current = torch.zeros_like(state.flatten(0, -4)[:, 0])
    with torch.autocast(u0.device.type, enabled=False):
        for n in range(u0.shape[-3]):
            state.flatten(0, -4)[:, n] = current
            new = torch.baddbmm(flat_u0[:, n], flat_w[:, n], current, alpha=-1)
            u.flatten(0, -4)[:, n] = new
            current = torch.baddbmm(current * factor[:, n], flat_k[:, n].mT, new)
    return state, u


@scan.register_fake
def _(u0: Tensor, w: Tensor, k: Tensor, decay: Tensor) -> tuple[Tensor, Tensor]:
    return u0.new_empty(*u0.shape[:-2], w.shape[-1], u0.shape[-1]), u0.new_empty(u0.shape)


@torch.library.custom_op("tandem_train::scan_backward", mutates_args=())
def scan_backward(to_state: Tensor, to_u: Tensor, w: Tensor, k: Tensor, decay: Tensor) -> tuple[Tensor, Tensor]:
    """Gradients of every u of `scan` [..., N, C, dv], and of the state behind every chunk [..., N, dk, dv]."""
    total_u, behind = torch.empty_like(to_u), torch.empty_like(to_state)
    flat_w, flat_k, flat_u, flat_state = (x.flatten(0, -4) for x in (w, k, to_u, to_state))
    factor = decay.flatten(0, -2)[..., None, None]
    current = torch.zeros_like(flat_state[:, 0])
    with torch.autocast(w.device.type, enabled=False):
        for n in reversed(range(w.shape[-3])):
            behind.flatten(0, -4)[:, n] = current
            new = torch.baddbmm(flat_u[:, n], flat_k[:, n], current)
            total_u.flatten(0, -4)[:, n] = new
            through = torch.baddbmm(flat_state[:, n], flat_w[:, n].mT, new, alpha=-1)
            current = through + factor[:, n] * current
    return total_u, behind


@scan_backward.register_fake
def _(to_state: Tensor, to_u: Tensor, w: Tensor, k: Tensor, decay: Tensor) -> tuple[Tensor, Tensor]:
    return to_u.new_empty(to_u.shape), to_state.new_empty(to_state.shape)


def _keep_scan(ctx: Any, inputs: tuple[Tensor, ...], output: tuple[Tensor, Tensor]) -> None:
    _, w, k, decay = inputs
    ctx.save_for_backward(w, k, decay, *output)


def _scan_gradient(ctx: Any, to_state: Tensor, to_u: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    w, k, decay, state, u = ctx.saved_tensors
    total_u, behind = scan_backward(to_state.contiguous(), to_u.contiguous(), w, k, decay)
    return total_u, -(total_u @ state.mT), u @ behind.mT, (state * behind).sum((-1, -2))


scan.register_autograd(_scan_gradient, setup_context=_keep_scan)
