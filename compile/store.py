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
from tandem.compile import rows
from tandem.compile.drafters import Drafter
from tandem.compile.models.rope import rope_tables
from tandem.compile.models.sources import TensorSource
from tandem.compile.models.spec import LlamaSpec
from tandem.compile.models.weights import load, weight_sources
from tandem.compile.profile import BOOKS, Format, Profile
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
    drafter: Drafter | None = None,
    advance: Callable[[int], None] = lambda nbytes: None,
) -> None:
    """Writes `path`: matrices and vectors in `layout`, rope tables of every position a row may stand at.

    With a `drafter` its own as well, behind the model's.

    `advance` hears of the bytes written. Raises CheckpointError for a tensor that is missing, misshapen or not finite.
    """
    # The rows of a verify may stand behind the last position of the context.
    cos, sin = rope_tables(spec.rope, spec.rotary_dim, context_length + MAX_TREE_ROWS)
    tables = {"rope.cos": cos, "rope.sin": sin}
    stored = _stored(spec, profile, layout, drafter)
    plan = [(name, lay.SAFETENSORS[form], lay.stored_shape(shape, form)) for name, (lay, form, shape) in stored.items()]
    parameters = [load(spec, checkpoint)]
    if drafter is not None:
        tables |= drafter.tables(context_length + MAX_TREE_ROWS)
        parameters.append(drafter.load(spec, checkpoint))
    plan += [(name, "F32", tuple(table.shape)) for name, table in tables.items()]
    with WeightsWriter(path, plan) as writer:
        for name, tensor in chain.from_iterable(parameters):
            lay, form, _ = stored[name]
            data = lay.pack(tensor, form)
            writer.write(name, data)
            advance(data.nbytes)
        for name, table in tables.items():
            writer.write(name, table)


def weight_bytes(spec: LlamaSpec, profile: Profile, layout: Layout, *, drafter: Drafter | None = None) -> int:
    """Bytes of all parameters as stored."""
    return sum(lay.stored_bytes(shape, form) for lay, form, shape in _stored(spec, profile, layout, drafter).values())


def _stored(
    spec: LlamaSpec, profile: Profile, layout: Layout, drafter: Drafter | None
) -> dict[str, tuple[Layout, Format, tuple[int, ...]]]:
    """Every parameter that is stored, in order: how it is laid out, in which format, and its shape."""
    shapes = {name: source.shape for name, source in weight_sources(spec).items()}
    if drafter is not None:
        shapes |= {name: source.shape for name, source in drafter.sources(spec).items()}
    return {
        name: (rows if name.rpartition(".")[2] in BOOKS else layout, profile.format(name, shape), shape)
        for name, shape in shapes.items()
    }
