"""Which programs a CUDA bundle holds: row buckets and context classes, and which kinds share one.

Grids are part of a CUDA graph, so every row bucket and every context class has a program of its own. A chain's verify
and an extend of as many rows are the same launches, so they are one program, unless a recurrent state tells them apart.
Long prefills and drafts loop over the context, and a commit, a draw and a sync do not look at it: they are for any
class.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from tandem.artifacts.io import Geometry
from tandem.keys import Kind, context_classes

BUCKETS = (1, 2, 4, 8, 16, 24, 32)
CHUNKS = (64, 128, 256, 512, 1024, 2048)
BLOCK_LANES = (1, 2, 4)
"""Lanes of a draft of whole blocks, beside as many as there is room for."""
ANY = 0


@dataclass(frozen=True, slots=True)
class Shape:
    """What one program is lowered for, and the kinds of entries that it serves. `context_class` 0 is any context."""

    kinds: tuple[Kind, ...]
    context_class: int
    rows: int

    @property
    def name(self) -> str:
        """Its file's name: `verify-tree-1024-16`."""
        return f"{self.kinds[0].value}-{self.context_class}-{self.rows}"


def shapes(geometry: Geometry) -> Iterator[Shape]:
    """Every program of a bundle with these capacities, the ones that serve first at the front."""
    chains = [(Kind.EXTEND,), (Kind.VERIFY_CHAIN,)] if geometry.recurrent_layers else [(Kind.EXTEND, Kind.VERIFY_CHAIN)]
    for bound in context_classes(geometry.context_length):
        for kinds in (*chains, (Kind.VERIFY_TREE,)):
            yield from (Shape(kinds, bound, rows) for rows in BUCKETS)
    yield from (Shape((Kind.EXTEND,), ANY, rows) for rows in CHUNKS if rows <= geometry.max_rows)
    yield Shape((Kind.COMMIT,), ANY, ANY)
    if geometry.drafter:
        chunks = [rows for rows in CHUNKS if rows <= geometry.max_rows]
        if block := geometry.drafter.block:
            lanes = [lanes for lanes in BLOCK_LANES if lanes < geometry.draft_lanes]
            yield from (Shape((Kind.DRAFT,), ANY, block.rows * count) for count in (*lanes, geometry.draft_lanes))
        else:
            for bound in context_classes(geometry.context_length):
                yield from (Shape((Kind.DRAFT,), bound, rows) for rows in BUCKETS)
            yield from (Shape((Kind.DRAFT,), ANY, rows) for rows in chunks)
        yield from (Shape((Kind.SYNC,), ANY, rows) for rows in (*BUCKETS, *chunks))
    if geometry.draws:
        yield from (Shape((Kind.SAMPLE,), ANY, rows) for rows in BUCKETS)
    if Kind.NEXT in geometry.kinds:
        yield Shape((Kind.NEXT,), ANY, ANY)
