"""The resolved configuration: all that decides what a bundle's bytes should be, and its digest.

Knows nothing of how it was settled; `compile/plan.py` fills it. Strict, so that nothing is decided outside of it.
"""

from __future__ import annotations

from typing import Any

import msgspec

from tandem.artifacts import digest
from tandem.artifacts.drafter import DrafterRecord
from tandem.artifacts.geometry import GeometryRecord
from tandem.artifacts.record import Count, Digest, Name, Record
from tandem.keys import Kind


class Resolved(Record, frozen=True, kw_only=True, omit_defaults=True):
    """`spec` and `profile` are the compiler's own records, field by field; `sources` and `tools` map a file's path,
    or a tool's name, to its sha256 or version; `environment` holds what of it a compiler obeys."""

    checkpoint: Digest
    spec: dict[str, Any]
    profile: dict[str, Any]
    device: Name
    geometry: GeometryRecord
    entries: tuple[Kind, ...]
    drafter: DrafterRecord | None = None
    flags: tuple[str, ...]
    program_version: Count
    sources: dict[str, Digest]
    tools: dict[str, str]
    environment: dict[str, str]

    def build_id(self) -> str:
        """sha256 of the fields as compact canonical JSON."""
        return digest.build_id(msgspec.to_builtins(self))
