"""How checkpoint tensors become a parameter: fused along dimension 0, or made into what its operator reads.

Knows no family and no file format.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

Shape = tuple[int, ...]


class TensorSource(Protocol):
    """What parameters are read from: tensors under their Hugging Face names; `origin` says where, for messages."""

    origin: str

    def names(self) -> Iterable[str]: ...

    def shape(self, name: str) -> Shape: ...

    def dtype(self, name: str) -> str: ...

    def read(self, name: str) -> Tensor: ...


def fused(parts: list[Tensor]) -> Tensor:
    """One after another along dimension 0."""
    return parts[0] if len(parts) == 1 else torch.cat(parts)


@dataclass(frozen=True, slots=True)
class Source:
    """The checkpoint tensors that make one parameter, and how."""

    names: tuple[str, ...]
    shapes: tuple[Shape, ...]
    make: Callable[[list[Tensor]], Tensor] = fused

    @classmethod
    def of(cls, parts: dict[str, Shape], make: Callable[[list[Tensor]], Tensor] = fused) -> Source:
        """Of tensors by name."""
        return cls(tuple(parts), tuple(parts.values()), make)

    def under(self, prefix: str) -> Source:
        """The same tensors below `prefix`."""
        return Source(tuple(prefix + name for name in self.names), self.shapes, self.make)

    @property
    def shape(self) -> Shape:
        """The parameter's shape."""
        return tuple(self.make([torch.empty(shape, device="meta") for shape in self.shapes]).shape)
