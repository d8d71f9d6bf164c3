"""Weights as Triton kernels read them: matrices row by row, vectors in fp32, and no format of fewer bits.

Knows nothing of files or checkpoints.
"""

from __future__ import annotations

from tandem.compile import rows
from tandem.compile.profile import Format
from tandem.compile.rows import ITEM_BYTES, SAFETENSORS, pack
from tandem.errors import UsageError

__all__ = ["ITEM_BYTES", "SAFETENSORS", "pack", "require", "stored_bytes", "stored_shape"]


def require(form: Format) -> None:
    """UsageError for a format that no Triton kernel multiplies."""
    if form not in SAFETENSORS:
        raise UsageError(f"{form} has no CUDA kernels in this build: use --profile bf16 or fp32, or --device cpu")


def stored_shape(shape: tuple[int, ...], form: Format) -> tuple[int, ...]:
    """A parameter keeps its shape."""
    require(form)
    return rows.stored_shape(shape, form)


def stored_bytes(shape: tuple[int, ...], form: Format) -> int:
    """Size of a parameter as stored."""
    require(form)
    return rows.stored_bytes(shape, form)
