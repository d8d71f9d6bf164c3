"""One linear layer called through its kernel: weights of any format in panels, poison around everything."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from tandem.compile.cpu.panels import pack, unpack
from tandem.compile.profile import Format
from tests.kernels.harness import call, canvas, library, normal, poisoned, written
from tests.kernels.products import GROUP, PANEL, int4_views, int8_views

FORMS: tuple[Format, ...] = ("fp32", "bf16", "int8", "int4")
LOW_BIT: tuple[Format, ...] = ("int8", "int4")
EPS = 1e-5


def spoiled(weight: torch.Tensor, form: Format) -> np.ndarray:
    """Panels, and one more, whose unused outputs are NaN and whose unused inputs are as large as can be.

    Nothing of it may be seen in an output.
    """
    n, k = weight.shape
    rows = (-(-n // PANEL) + 1) * PANEL
    whole = torch.full((rows, k), 0.0 if form in LOW_BIT else torch.nan)
    whole[:n] = weight
    stored, unused = pack(whole, form), np.arange(rows).reshape(-1, PANEL) >= n
    if form == "bf16" and k % 2:
        stored.reshape(len(stored), -1, PANEL, 2)[:, -1, :, 1] = 0x7F7F
    if form == "int8":
        raised, scales = int8_views(stored)
        raised.transpose(0, 2, 1, 3)[unused], scales[unused] = 255, np.nan
        for i in range(k, raised.shape[1] * 4):
            raised[:, i // 4, :, i % 4] = 255
    if form == "int4":
        pairs, reals = int4_views(stored)
        pairs.transpose(0, 3, 1, 2, 4)[unused], reals.transpose(0, 3, 1, 2)[unused] = 255, np.nan
        for i in range(k % GROUP or GROUP, GROUP):
            pairs[:, -1, i % 16 // 4, :, i % 4] |= 15 << i // 16 * 4
    return stored


class Layer:
    """`weight` is what the panels stand for, [N, K]."""

    def __init__(self, n: int, k: int, form: Format = "fp32", bias: bool = False) -> None:
        self.form, self.bias = form, normal(n, seed=2) if bias else None
        self.hold(torch.from_numpy(normal(n, k, seed=1)))

    def hold(self, weight: torch.Tensor) -> None:
        """Takes another weight."""
        shape = (weight.shape[0], weight.shape[1])
        self.panels = spoiled(weight, self.form)
        self.weight = unpack(pack(weight, self.form), self.form, shape)

    def __call__(
        self, x: np.ndarray, path: Path | None = None, threads: int = 1, *, norm: np.ndarray | None = None,
        delta: np.ndarray | None = None, gated: bool = False,
    ) -> np.ndarray:  # fmt: skip
        """[R, N], or [R, N / 2] gated; with `delta` the sums [R, K] stand before them."""
        (count, k), n = x.shape, self.weight.shape[0]
        width = n // 2 if gated else n
        y, total = canvas(count, width + 7), None if delta is None else canvas(count, k + 2)
        call(
            path or library(), f"linear_{self.form}", threads, count=count, x=poisoned(x, k + 5), x_stride=k + 5,
            delta=None if delta is None else poisoned(delta, k + 1), delta_stride=k + 1, norm=norm, eps=EPS,
            sum=total, sum_stride=k + 2, weight=self.panels, bias=self.bias, y=y, y_stride=width + 7, n=n, k=k,
            gated=int(gated),
        )  # fmt: skip
        found = written(y, count, width)
        return found if total is None else np.concatenate((written(total, count, k), found), axis=1)
