"""Checkpoint tensors held against the parameters that are made of them: by name, by shape, by what they are stored as.

Knows no family: sources come from whoever knows the model.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator

import torch
from torch import Tensor

from tandem.compile.models.sources import Source, TensorSource
from tandem.errors import CheckpointError


def match(sources: Iterable[Source], found: Collection[str], checkpoint: TensorSource) -> list[str]:
    """The names of `found` that no source asks for, sorted, once every source has what it asks for.

    CheckpointError names a tensor that is missing, of another shape than wanted, or no real number.
    """
    wanted = {name: shape for s in sources for name, shape in zip(s.names, s.shapes, strict=True)}
    if missing := [name for name in wanted if name not in found]:
        raise CheckpointError(f"{checkpoint.origin}: lacks {listed(missing)}; fetch it again")
    for name, shape in wanted.items():
        if tuple(checkpoint.shape(name)) != shape:
            raise CheckpointError(
                f"{checkpoint.origin}: {name} has shape {tuple(checkpoint.shape(name))}, but the config wants {shape}; "
                "do config and weights belong together?"
            )
        require_real(name, checkpoint)
    return sorted(set(found) - wanted.keys())


def read_sources(sources: dict[str, Source], checkpoint: TensorSource) -> Iterator[tuple[str, Tensor]]:
    """Parameters by name, read one at a time. CheckpointError names a tensor that is not finite."""
    for name, source in sources.items():
        yield name, source.make([_finite(part, checkpoint) for part in source.names])


def require_real(name: str, checkpoint: TensorSource) -> None:
    """CheckpointError for whole numbers and 8-bit codes, whose scales lie elsewhere."""
    if (dtype := checkpoint.dtype(name)) in _CODES:
        raise CheckpointError(
            f"{checkpoint.origin}: {name} is stored as {dtype}; wanted F64, F32, F16 or BF16: "
            "start from the unquantised checkpoint"
        )


def listed(names: list[str]) -> str:
    """The first names, and how many more there are."""
    shown = ", ".join(names[:3])
    return shown if len(names) <= 3 else f"{shown} and {len(names) - 3} more"


def _finite(name: str, checkpoint: TensorSource) -> Tensor:
    """A tensor without NaN and infinity, also once rounded: one would be in every text, and no proof would see it."""
    tensor = checkpoint.read(name)
    # NaN if there is any: no mask of all elements. No format reaches further than fp32, and bf16 as far but for a hair.
    if not all(bound.to(torch.bfloat16).isfinite() for bound in torch.aminmax(tensor)):
        wrong = int((~tensor.to(torch.bfloat16).isfinite()).sum())
        raise CheckpointError(
            f"{checkpoint.origin}: {name} has {wrong} values of {tensor.numel()} that are NaN, infinite or too large "
            "for bf16; fetch it again, or ask who made it"
        )
    return tensor


_CODES = frozenset(("BOOL", "U8", "I8", "F8_E4M3", "F8_E5M2", "U16", "I16", "U32", "I32", "U64", "I64"))
"""As safetensors call what is no weight by itself."""
