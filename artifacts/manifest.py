"""The manifest's fields, field by field as `docs/bundle.md` lists them, and its one spelling as bytes.

Knows nothing of reading: `tandem.artifacts.header` checks a manifest, `tandem.artifacts.reader` the files it lists.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from tandem.artifacts import canonical, digest, layout
from tandem.artifacts.io import Geometry
from tandem.keys import EntryKey, Kind

Name = Annotated[str, Meta(min_length=1, max_length=256)]
Digest = Annotated[str, Meta(pattern=r"\A[0-9a-f]{64}\Z")]
Count = Annotated[int, Meta(ge=0, le=2**31 - 1)]
Capacity = Annotated[int, Meta(ge=1, le=2**31 - 1)]
Bytes = Annotated[int, Meta(ge=0, le=2**63 - 1)]


class _Record(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Every field is required, so that none can be dropped from a manifest unseen."""


class FileRecord(_Record, frozen=True):
    path: str
    size: Bytes
    sha256: Digest


class EntryRecord(_Record, frozen=True):
    """An entry; `sha256` is that of the program and is filled in by the writer ("" until then)."""

    kind: Kind
    context_class: Count
    rows: Count
    part: Name
    program: str
    sha256: Digest


class GeometryRecord(_Record, frozen=True):
    """`tandem.artifacts.io.Geometry`, checked field by field."""

    context_length: Capacity
    vocab_size: Capacity
    max_rows: Capacity
    max_outputs: Capacity
    max_lanes: Capacity
    page_tokens: Capacity
    page_bytes: Annotated[int, Meta(ge=1, le=2**63 - 1)]
    kv_planes: tuple[tuple[Capacity, Capacity], ...]

    @classmethod
    def of(cls, geometry: Geometry) -> GeometryRecord:
        return cls(**{name: getattr(geometry, name) for name in cls.__struct_fields__})

    def geometry(self) -> Geometry:
        return Geometry(**msgspec.structs.asdict(self))


class TokenizerFacts(_Record, frozen=True):
    chat_template: str | None
    bos_token: str | None
    eos_token: str | None
    stop_ids: tuple[Count, ...]


class Validity(_Record, frozen=True):
    """Facts that refuse a machine. `flags` are the CPU flags the kernels use."""

    arch: Name
    isa_level: Name
    flags: tuple[Name, ...]
    abi: Name


class PriceFacts(_Record, frozen=True):
    """Facts of the machine the prices were measured on; `memory` in bytes."""

    product: Name
    cores: Capacity
    memory: Bytes


class Host(_Record, frozen=True):
    validity: Validity
    price: PriceFacts


class ProofSummary(_Record, frozen=True):
    """How many cases were compared with one-token steps, and in how many a bit differed."""

    cases: Count
    differing: Count


class BuiltHere(_Record, frozen=True):
    """`key` names a machine's key, `token` proves that its holder sealed this content."""

    key: Annotated[str, Meta(pattern=r"\A[0-9a-f]{16}\Z")]
    token: Digest


class Draft(_Record, frozen=True):
    """What a compiler states about a bundle; the writer adds the files and the digests."""

    name: Name
    family: Name
    profile: Name
    device: Name
    arithmetic: Literal["exact"]
    geometry: GeometryRecord
    entries: tuple[EntryRecord, ...]
    tokenizer: TokenizerFacts
    host: Host
    proof: ProofSummary
    resolved: dict[str, Any]


class Manifest(Draft, frozen=True):
    """A whole manifest. `content_id` covers every field but itself and `built_here`."""

    format: Literal[1]
    files: tuple[FileRecord, ...]
    build_id: Digest
    content_id: Digest
    built_here: BuiltHere | None

    def key(self, entry: EntryRecord) -> EntryKey:
        """The whole key of one of this manifest's entries."""
        return EntryKey(self.name, self.profile, self.device, entry.kind, entry.context_class, entry.rows, entry.part)

    def compute_content_id(self) -> str:
        """The content id that these fields give, whatever `content_id` says."""
        bare = encode(msgspec.structs.replace(self, content_id="", built_here=None))
        leaves = [(f.path, f.size, f.sha256) for f in self.files]
        return digest.merkle_root([*leaves, (layout.MANIFEST, len(bare), digest.sha256_bytes(bare))])


def encode(manifest: Manifest) -> bytes:
    """The one spelling of a manifest."""
    return canonical.encode(msgspec.to_builtins(manifest))
