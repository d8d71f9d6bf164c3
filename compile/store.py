"""Writes a checkpoint's parameters as the weights file: fused, rounded to the profile, as the device's kernels read.

One parameter is in memory at a time.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import chain
from pathlib import Path
from typing import Protocol

import numpy as np
from torch import Tensor

from tandem.artifacts.weights import WeightsWriter
from tandem.compile.models.rope import rope_tables
from tandem.compile.models.sources import TensorSource
from tandem.compile.models.spec import LlamaSpec
from tandem.compile.models.weights import load, load_mtp, mtp_sources, weight_sources
from tandem.compile.profile import Format, Profile
from tandem.keys import MAX_TREE_ROWS


class Layout(Protocol):
    """How a device's kernels want parameters: modules such as `tandem.compile.cpu.panels` are layouts."""

    SAFETENSORS: dict[Format, str]

    def stored_shape(self, shape: tuple[int, ...], form: Format) -> tuple[int, ...]: ...

    def stored_bytes(self, shape: tuple[int, ...], form: Format) -> int: ...

    def pack(self, weight: Tensor, form: Format) -> np.ndarray: ...


def write_weights(
    spec: LlamaSpec,
    profile: Profile,
    checkpoint: TensorSource,
    path: Path,
    *,
    layout: Layout,
    context_length: int,
    drafter: bool = False,
    advance: Callable[[int], None] = lambda nbytes: None,
) -> None:
    """Writes `path`: matrices and vectors in `layout`, rope tables of every position a row may stand at.

    With `drafter` also those of the checkpoint's layer that drafts.

    `advance` hears of the bytes written. Raises CheckpointError for a tensor that is missing, misshapen or not finite.
    """
    # The rows of a verify may stand behind the last position of the context.
    cos, sin = rope_tables(spec.rope, spec.rotary_dim, context_length + MAX_TREE_ROWS)
    tables = {"rope.cos": cos, "rope.sin": sin}
    shapes = _shapes(spec, drafter)
    forms = {name: profile.format(name, shape) for name, shape in shapes.items()}
    plan = [
        (name, layout.SAFETENSORS[forms[name]], layout.stored_shape(shape, forms[name]))
        for name, shape in shapes.items()
    ]
    plan += [(name, "F32", tuple(table.shape)) for name, table in tables.items()]
    with WeightsWriter(path, plan) as writer:
        for name, tensor in chain(load(spec, checkpoint), load_mtp(spec, checkpoint) if drafter else ()):
            data = layout.pack(tensor, forms[name])
            writer.write(name, data)
            advance(data.nbytes)
        for name, table in tables.items():
            writer.write(name, table)


def weight_bytes(spec: LlamaSpec, profile: Profile, layout: Layout, *, drafter: bool = False) -> int:
    """Bytes of all parameters as stored."""
    shapes = _shapes(spec, drafter).items()
    return sum(layout.stored_bytes(shape, profile.format(name, shape)) for name, shape in shapes)


def _shapes(spec: LlamaSpec, drafter: bool) -> dict[str, tuple[int, ...]]:
    """Every parameter that is stored, in order."""
    sources = weight_sources(spec) | (mtp_sources(spec) if drafter else {})
    return {name: source.shape for name, source in sources.items()}
