"""Gated DeltaNet of a target while its drafter is trained: whole sequences in chunks, or a token at a time.

Letters: B sequences, T tokens, H hidden_size; Hv value heads of dv, dk the width of a key head, W taps over N channels.
"""

from __future__ import annotations

from functools import reduce
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor

from tandem.compile.models.spec import HybridSpec
from tandem.compile.train.layers import unit
from tandem.compile.train.recurrence import delta_rule

if TYPE_CHECKING:
    from tandem.compile.train.drafter.target import Target


class Recurrent:
    """One layer over its weights; `begin` makes a state and a tail of raw inputs of zeros."""

    def __init__(self, target: Target, layer: int) -> None:
        assert isinstance(target.spec, HybridSpec)
        self.target, self.layer, self.spec = target, layer, target.spec
        self._cache: tuple[Tensor, Tensor] | None = None

    def begin(self, batch: int, length: int) -> None:
        target = self.target
        shapes = (batch, *self.spec.state_shape), (batch, *self.spec.tail_shape)
        state, tail = (torch.zeros(shape, dtype=target.wide, device=target.device) for shape in shapes)
        self._cache = state, tail

    def end(self) -> None:
        self._cache = None

    def sequence(self, x: Tensor) -> Tensor:
        """x [B, T, H] -> [B, T, H]"""
        raw, z = self._project(x)
        padded = F.pad(raw, (0, 0, self.spec.linear_conv_kernel_dim - 1, 0))
        q, k, v = self._convolved([padded[:, i : i + raw.shape[1]] for i in range(self.spec.linear_conv_kernel_dim)])
        g, beta = self._gates(x)
        return self._leave(delta_rule(q, k, v, g, beta), z)

    def step(self, x: Tensor, position: int) -> Tensor:
        """x [B, 1, H] -> [B, 1, H]; engine facts, section 1.3."""
        assert self._cache is not None
        (state, tail), (raw, z) = self._cache, self._project(x)
        window = torch.cat((tail, raw), 1)
        q, k, v = (part[:, 0] for part in self._convolved([part[:, None] for part in window.unbind(1)]))
        g, beta = (part[:, 0] for part in self._gates(x))
        decayed = state * g.exp()[..., None, None]
        u = beta[..., None] * (v - torch.einsum("bhkv,bhk->bhv", decayed, k))
        state = decayed + k[..., None] * u[..., None, :]
        self._cache = state, window[:, 1:]
        return self._leave(torch.einsum("bhkv,bhk->bhv", state, q)[:, None], z)

    def _project(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Raw inputs of the convolution [B, T, N], and z [B, T, Hv, dv]."""
        spec, target = self.spec, self.target
        y = target.linear(x, target.weight("qkvz", self.layer))
        raw, z = torch.split(y, [spec.conv_size, spec.linear_value_size], -1)
        return raw, z.reshape(*z.shape[:2], spec.linear_num_value_heads, -1)

    def _convolved(self, window: list[Tensor]) -> tuple[Tensor, Tensor, Tensor]:
        """q, k [B, T, Hv, dk] and v [B, T, Hv, dv] of raw inputs [B, T, N], the oldest first."""
        spec, weight = self.spec, self.target.weight("conv", self.layer)
        taps = weight.view(len(window), -1)
        qkv = F.silu(reduce(torch.add, (part * tap for part, tap in zip(window, taps, strict=True))))
        q, k, v = torch.split(qkv, [spec.linear_key_size, spec.linear_key_size, spec.linear_value_size], -1)
        groups = spec.linear_num_value_heads // spec.linear_num_key_heads
        q, k = (unit(part.reshape(*part.shape[:2], spec.linear_num_key_heads, -1)) for part in (q, k))
        q, k = ((q * spec.linear_key_head_dim**-0.5).repeat_interleave(groups, 2), k.repeat_interleave(groups, 2))
        return q, k, v.reshape(*v.shape[:2], spec.linear_num_value_heads, -1)

    def _gates(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Log of decay, and beta, both [B, T, Hv]."""
        target = self.target
        b, a = target.linear(x, target.weight("ba", self.layer)).chunk(2, -1)
        a_log, dt_bias = (target.weight(name, self.layer) for name in ("a_log", "dt_bias"))
        return -a_log.exp() * F.softplus(a + dt_bias), b.sigmoid()

    def _leave(self, o: Tensor, z: Tensor) -> Tensor:
        target = self.target
        gated = target.norm(o, target.weight("norm", self.layer)) * F.silu(z)
        return target.linear(gated.flatten(2), target.weight("o", self.layer))
