"""Writes a checkpoint's parameters as the weights file: fused, rounded to the profile, in kernel layout.

One parameter is in memory at a time.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from tandem.artifacts.weights import WeightsWriter
from tandem.compile.cpu.panels import SAFETENSORS, pack, stored_shape
from tandem.compile.models.rope import rope_tables
from tandem.compile.models.spec import LlamaSpec
from tandem.compile.models.weights import TensorSource, load, weight_sources
from tandem.compile.profile import Profile
from tandem.keys import MAX_TREE_ROWS


def write_weights(
    spec: LlamaSpec,
    profile: Profile,
    checkpoint: TensorSource,
    path: Path,
    *,
    context_length: int,
    advance: Callable[[int], None] = lambda nbytes: None,
) -> None:
    """Writes `path`: matrices as panels, vectors in fp32, rope tables of every position a row may stand at.

    `advance` hears of the bytes written. Raises CheckpointError for a tensor that is missing or misshapen.
    """
    # The rows of a verify may stand behind the last position of the context.
    cos, sin = rope_tables(spec.rope, spec.head_dim, context_length + MAX_TREE_ROWS)
    tables = {"rope.cos": cos, "rope.sin": sin}
    shapes = {name: source.shape for name, source in weight_sources(spec).items()}
    forms = {name: profile.format(name, shape) for name, shape in shapes.items()}
    plan = [(name, SAFETENSORS[forms[name]], stored_shape(shape, forms[name])) for name, shape in shapes.items()]
    plan += [(name, "F32", tuple(table.shape)) for name, table in tables.items()]
    with WeightsWriter(path, plan) as writer:
        for name, tensor in load(spec, checkpoint):
            data = pack(tensor, forms[name])
            writer.write(name, data)
            advance(data.nbytes)
        for name, table in tables.items():
            writer.write(name, table)
