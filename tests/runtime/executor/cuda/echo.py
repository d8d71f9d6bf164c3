"""A fake GPU whose programs echo what they are told, and a step for them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from tandem.runtime.executor.base import Rows
from tests.fake_device import Node
from tests.fake_driver import FakeCuda
from tests.runtime.executor.cuda.sample import GEOMETRY, LAYOUT

NUM_PAGES = 5
LOST = 46
TABLE = np.array([[3, 1], [4, 0]], np.int32)


class Gpu(FakeCuda):
    """Its programs echo: argmax is the token of the output's row plus their number, gap the position, logits both."""

    layout = LAYOUT

    def __init__(self, **options: int) -> None:
        super().__init__(**options, run=self.echo)  # type: ignore[arg-type]
        self.seen: list[dict[str, np.ndarray]] = []
        self.numbers: list[int] = []

    def io(self) -> dict[str, np.ndarray]:
        """Fields of the io region as they lie on the device."""
        memory = next(m for m in self.live["memory"].values() if m.nbytes == self.layout.nbytes)
        return self.layout.views(memory.array)

    def region(self, nbytes: int) -> np.ndarray:
        return next(m.array for m in self.live["memory"].values() if m.nbytes == nbytes)

    def echo(self, nodes: list[Node]) -> None:
        io = self.io()
        self.seen.append({name: field.copy() for name, field in io.items()})
        self.numbers.append(nodes[0].words[3])
        for output, row in enumerate(io["output_row"][: io["counts"][1]]):
            io["argmax"][output] = io["token"][row] + nodes[0].words[3]
            io["gap"][output] = io["position"][row] / 4
            io["logits"][output] = io["token"][row] + np.arange(GEOMETRY.vocab_size, dtype=np.float32)


class Gone(Gpu):
    """From call number `gone_at` on, every call but those for words answers LOST and does nothing."""

    gone_at = 1 << 62
    first = ""

    def _answer(self, name: str, act: Callable[..., int | None], arguments: tuple[Any, ...]) -> int:
        if len(self.calls) < self.gone_at or name.startswith("cuGetError"):
            return super()._answer(name, act, arguments)
        self.calls.append(name)
        self.first = self.first or name
        return LOST


def step(token: int = 7, position: int = 70, table: np.ndarray = TABLE) -> Rows:
    return Rows([token], [position], [0], [position], [position + 1], [0], table)
