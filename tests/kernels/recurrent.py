"""Random passes over state slots for tests: rows of several lanes, their trees, and what commits them."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from hypothesis import strategies as st
from torch import Tensor


def int32(values: list[int]) -> Tensor:
    return torch.tensor(values, dtype=torch.int32)


def normal(seed: int, *shape: int, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


@dataclass(frozen=True, slots=True)
class Rows:
    """Where the rows of a pass stand: what every recurrent operator is told. `starts` are lanes' committed lengths."""

    lane: list[int]
    parent: list[int]
    depth: list[int]
    starts: list[int]
    slots: list[int]

    @classmethod
    def of(cls, trees: dict[int, list[int]], starts: list[int], slots: list[int]) -> Rows:
        """Rows of trees (parents, the first -1) by lane."""
        rows = cls([], [], [], starts, slots)
        for lane, parents in trees.items():
            first = len(rows.lane)
            for above in parents:
                rows.lane.append(lane)
                rows.parent.append(first + above if above >= 0 else -1)
                rows.depth.append(rows.depth[first + above] + 1 if above >= 0 else 0)
        return rows

    @property
    def where(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """state_slot, lane, position, parent."""
        position = [self.starts[lane] + depth for lane, depth in zip(self.lane, self.depth, strict=True)]
        return int32(self.slots), int32(self.lane), int32(position), int32(self.parent)

    def path(self, row: int) -> list[int]:
        """Rows from the lane's first down to `row`."""
        return ([] if self.parent[row] < 0 else self.path(self.parent[row])) + [row]

    def moves(self, paths: list[list[int]]) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """state_slot, move_lane, move_row, move_target of accepted paths."""
        rows = [row for path in paths for row in path]
        lane, target = [self.lane[row] for row in rows], [self.starts[self.lane[row]] + self.depth[row] for row in rows]
        return int32(self.slots), int32(lane), int32(rows), int32(target)

    def line(self, path: list[int]) -> Rows:
        """`path` alone, as rows that all stay."""
        return replace(
            self, lane=[self.lane[r] for r in path], parent=list(range(-1, len(path) - 1)), depth=list(range(len(path)))
        )


@st.composite
def passes(draw: st.DrawFn, *, tree: bool = True, most: int = 9) -> Rows:
    """One to three lanes of a few rows each, in slots of a larger store, some with nothing committed."""
    lanes = draw(st.permutations(range(3)).map(lambda order: order[: draw(st.integers(1, 3))]))
    trees = {}
    for lane in lanes:
        size = draw(st.integers(1, most))
        trees[lane] = [-1] + [draw(st.integers(0, node - 1)) if tree else node - 1 for node in range(1, size)]
    starts = [draw(st.sampled_from((0, 1, 2, 7))) for _ in range(3)]
    return Rows.of(trees, starts, draw(st.permutations(range(5)))[:3])


def accepted(data: st.DataObject, rows: Rows) -> list[list[int]]:
    """An accepted path of every lane, drawn."""
    ends = ([row for row, at in enumerate(rows.lane) if at == lane] for lane in dict.fromkeys(rows.lane))
    return [rows.path(data.draw(st.sampled_from(end))) for end in ends]
