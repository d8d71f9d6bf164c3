"""State slots for kernel tests: states and tails of three layers in one region, and the factors a verify keeps.

What nobody may read is NaN, and so is every number that nobody may write. The layer in the middle is the one used by
passes; a commit moves all of them on. Numpy throughout.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from tests.kernels.harness import Argument, call, canvas, library, normal, poisoned, written
from tests.kernels.recurrent import Rows

LAYERS, USED = 3, 1
SLOTS = 5
FACTOR_ROWS = 40
EPS = 1e-6
BEYOND = 2**30
"""An index that must never be followed."""


@dataclass(frozen=True, slots=True)
class Heads:
    """`key` and `value` heads and the widths of each, with a convolution of `taps` over `channels`."""

    key: int
    value: int
    key_dim: int
    value_dim: int
    channels: int = 5
    taps: int = 4

    @property
    def state(self) -> tuple[int, int, int]:
        return self.value, self.key_dim, self.value_dim

    @property
    def tail(self) -> tuple[int, int]:
        return self.taps - 1, self.channels


def indices(values: torch.Tensor | list[int]) -> np.ndarray:
    """int32, with indices behind their end that must not be followed."""
    return np.concatenate((np.asarray(values, np.int32), np.full(3, BEYOND, np.int32)))


class Slotted:
    """`state` is [S, LAYERS, Hv, dk, dv] and `tail` [S, LAYERS, W - 1, N], views of `memory` [S, floats of a slot].

    `k` [LAYERS, F, Hk, dk], `u` [LAYERS, F, Hv, dv], `decay` [LAYERS, F, Hv] and `raw` [LAYERS, F, N] are views of
    `factors`.
    """

    def __init__(self, heads: Heads, rows: Rows | None = None, slots: int = SLOTS, seed: int = 0) -> None:
        self.heads = heads
        spans = [LAYERS * int(np.prod(shape)) for shape in (heads.state, heads.tail)]
        self.memory = np.full((slots, sum(spans) + 3), np.nan, np.float32)
        self.state = self.memory[:, : spans[0]].reshape(slots, LAYERS, *heads.state)
        self.tail = self.memory[:, spans[0] : sum(spans)].reshape(slots, LAYERS, *heads.tail)
        self.state[:], self.tail[:] = normal(*self.state.shape, seed=seed), normal(*self.tail.shape, seed=seed + 1)
        for slot, start in zip(rows.slots, rows.starts, strict=True) if rows else ():
            self.tail[slot, :, : max(0, heads.taps - 1 - start)] = 0
            if start == 0:
                self.memory[slot] = np.nan
        kept = ((heads.channels,), (heads.key, heads.key_dim), (heads.value, heads.value_dim), (heads.value,))
        ends = np.cumsum([0] + [FACTOR_ROWS * int(np.prod(shape)) for shape in kept]).tolist()
        self.factors = np.full((LAYERS, ends[-1] + 5), np.nan, np.float32)
        self.raw, self.k, self.u, self.decay = (
            self.factors[:, begin:end].reshape(LAYERS, FACTOR_ROWS, *shape)
            for begin, end, shape in zip(ends, ends[1:], kept, strict=False)
        )

    def _at(self, view: np.ndarray, layer: int) -> np.ndarray:
        """What a kernel is given of a view: all of its region from the layer's first number on."""
        region = self.factors if view.base is self.factors else self.memory
        first = view[layer] if region is self.factors else view[0, layer]
        return region.reshape(-1)[(first.ctypes.data - region.ctypes.data) // 4 :]

    def _where(self, rows: Rows) -> dict[str, Argument]:
        state_slot, lane, position, parent = map(indices, rows.where)
        where = {"state_slot": state_slot, "lane": lane, "position": position, "parent": parent}
        return {**where, "slot_bytes": self.memory.strides[0]}

    def _moves(self, rows: Rows, paths: list[list[int]]) -> dict[str, Argument]:
        names = ("state_slot", "move_lane", "move_row", "move_target")
        given = dict(zip(names, map(indices, rows.moves(paths)), strict=True))
        strides = {"slot_bytes": self.memory.strides[0], "factor_layer_bytes": self.factors.strides[0]}
        return {**given, **strides, "layers": LAYERS, "count": sum(map(len, paths))}

    def _sizes(self) -> dict[str, Argument]:
        h = self.heads
        return {"key_heads": h.key, "value_heads": h.value, "key_dim": h.key_dim, "value_dim": h.value_dim}

    def convolve(
        self, x: np.ndarray, weight: np.ndarray, rows: Rows, *, tree: bool | None = None, layer: int = USED,
        path: Path | None = None, threads: int = 1,
    ) -> np.ndarray:  # fmt: skip
        """x [R, N] -> [R, N]; a verify where `tree` is given."""
        count, channels = x.shape
        y = canvas(count, channels + 2)
        verify: dict[str, Argument] = {} if tree is None else {"raw": self._at(self.raw, layer), "tree": int(tree)}
        call(
            path or library(), "causal_conv" if tree is None else "conv_verify", threads, count=count,
            x=poisoned(x, channels + 3), x_stride=channels + 3, weight=weight, tail=self._at(self.tail, layer), y=y,
            y_stride=channels + 2, channels=channels, taps=self.heads.taps, **self._where(rows), **verify,
        )  # fmt: skip
        return written(y, count, channels)

    def commit_conv(self, rows: Rows, paths: list[list[int]], path: Path | None = None, threads: int = 1) -> None:
        call(
            path or library(), "conv_commit", threads, raw=self._at(self.raw, 0), tail=self._at(self.tail, 0),
            slot_layer_bytes=self.tail.strides[1], channels=self.heads.channels, taps=self.heads.taps,
            **self._moves(rows, paths),
        )  # fmt: skip

    def recur(
        self, inputs: Inputs, rows: Rows, *, tree: bool | None = None, layer: int = USED, path: Path | None = None,
        threads: int = 1,
    ) -> np.ndarray:  # fmt: skip
        """-> [R, Hv, dv]; a verify where `tree` is given."""
        count, width = len(inputs.v), int(np.prod(inputs.v.shape[1:]))
        rest: dict[str, Argument] = {}
        for i, (name, x) in enumerate(inputs.named().items()):
            flat = x.reshape(count, int(np.prod(x.shape[1:])))
            rest |= {name: poisoned(flat, flat.shape[1] + i), f"{name}_stride": flat.shape[1] + i}
        y = canvas(count, width + 2)
        if tree is not None:
            rest |= {f"{name}_factor": self._at(getattr(self, name), layer) for name in ("k", "u", "decay")}
            rest["tree"] = int(tree)
        call(
            path or library(), "delta_rule" if tree is None else "delta_verify", threads, count=count,
            state=self._at(self.state, layer), y=y, y_stride=width + 2, eps=EPS, **rest, **self._where(rows),
            **self._sizes(),
        )  # fmt: skip
        return written(y, count, width).reshape(inputs.v.shape)

    def commit_state(self, rows: Rows, paths: list[list[int]], path: Path | None = None, threads: int = 1) -> None:
        call(
            path or library(), "delta_commit", threads, k_factor=self._at(self.k, 0), u_factor=self._at(self.u, 0),
            decay_factor=self._at(self.decay, 0), state=self._at(self.state, 0),
            slot_layer_bytes=self.state.strides[1], **self._moves(rows, paths), **self._sizes(),
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Inputs:
    """q and k [R, Hk, dk], v [R, Hv, dv], decay and beta [R, Hv]."""

    q: np.ndarray
    k: np.ndarray
    v: np.ndarray
    decay: np.ndarray
    beta: np.ndarray

    @classmethod
    def random(cls, heads: Heads, count: int, seed: int = 10) -> Inputs:
        """Gates as models have them: mostly kept, half corrected."""
        q, k = (normal(count, heads.key, heads.key_dim, seed=seed + i) for i in range(2))
        v, g, b = (normal(count, heads.value, n, seed=seed + i) for i, n in ((2, heads.value_dim), (3, 1), (4, 1)))
        return cls(q, k, v, np.exp(-np.abs(g[..., 0])), 1 / (1 + np.exp(-b[..., 0])))

    def named(self) -> dict[str, np.ndarray]:
        return {"q": self.q, "k": self.k, "v": self.v, "decay": self.decay, "beta": self.beta}

    def of(self, rows: list[int]) -> Inputs:
        return Inputs(*(x[rows] for x in self.named().values()))

    def tensors(self, dtype: torch.dtype) -> tuple[torch.Tensor, ...]:
        return tuple(torch.from_numpy(x).to(dtype) for x in self.named().values())
