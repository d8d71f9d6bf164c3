"""`tandem.artifacts.io.Geometry` as a record of the manifest, checked field by field."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from tandem.artifacts.io import Geometry
from tandem.artifacts.record import Bytes, Capacity, Count, Record


class GeometryRecord(Record, frozen=True, omit_defaults=True):
    """Capacities; what they mean stands at `Geometry`. What is not there is not spelt."""

    context_length: Capacity
    vocab_size: Capacity
    max_rows: Capacity
    max_outputs: Capacity
    max_lanes: Capacity
    page_tokens: Capacity
    page_bytes: Annotated[int, Meta(ge=1, le=2**63 - 1)]
    kv_planes: tuple[tuple[Capacity, Capacity], ...]
    recurrent_layers: Count
    state_bytes: Bytes
    factor_bytes: Bytes
    draws: bool = False

    @classmethod
    def of(cls, geometry: Geometry) -> GeometryRecord:
        return cls(**{name: getattr(geometry, name) for name in cls.__struct_fields__})

    def geometry(self) -> Geometry:
        return Geometry(**msgspec.structs.asdict(self))
