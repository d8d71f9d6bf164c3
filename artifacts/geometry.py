"""`tandem.artifacts.io.Geometry` as a record of the manifest, checked field by field."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import msgspec
from msgspec import Meta

from tandem.artifacts.io import BlockGeometry, DraftGeometry, Geometry
from tandem.artifacts.record import Bytes, Capacity, Count, Record

PageBytes = Annotated[int, Meta(ge=1, le=2**63 - 1)]
Planes = tuple[tuple[Capacity, Capacity], ...]


class BlockGeometryRecord(Record, frozen=True):
    """What stands at `BlockGeometry`."""

    rows: Capacity
    mask_token: Count
    context_length: Capacity


class DraftGeometryRecord(Record, frozen=True, omit_defaults=True):
    """What a drafter takes; what it means stands at `DraftGeometry`."""

    tap_rows: Capacity
    tap_width: Capacity
    page_bytes: PageBytes
    kv_planes: Planes
    top: Capacity
    block: BlockGeometryRecord | None = None

    def geometry(self) -> DraftGeometry:
        block = self.block and BlockGeometry(**msgspec.structs.asdict(self.block))
        return DraftGeometry(**msgspec.structs.asdict(self) | {"block": block})


class GeometryRecord(Record, frozen=True, omit_defaults=True):
    """Capacities; what they mean stands at `Geometry`. What is not there is not spelt."""

    context_length: Capacity
    vocab_size: Capacity
    max_rows: Capacity
    max_outputs: Capacity
    max_lanes: Capacity
    page_tokens: Capacity
    page_bytes: PageBytes
    kv_planes: Planes
    recurrent_layers: Count
    state_bytes: Bytes
    factor_bytes: Bytes
    drafter: DraftGeometryRecord | None = None
    draws: bool = False

    @classmethod
    def of(cls, geometry: Geometry) -> GeometryRecord:
        return msgspec.convert(asdict(geometry), cls)

    def geometry(self) -> Geometry:
        drafter = self.drafter and self.drafter.geometry()
        return Geometry(**msgspec.structs.asdict(self) | {"drafter": drafter})
