"""The manifest's fields, field by field as `docs/bundle.md` lists them, and its one spelling as bytes.

Knows nothing of reading: `tandem.artifacts.header` checks a manifest, `tandem.artifacts.reader` the files it lists.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from tandem.artifacts import canonical, digest, layout
from tandem.artifacts.drafter import DrafterRecord
from tandem.artifacts.geometry import GeometryRecord
from tandem.artifacts.quality import Quality
from tandem.artifacts.record import Bytes, Capacity, Count, Digest, Name, Record, Version
from tandem.artifacts.resolved import Resolved
from tandem.keys import EntryKey, Kind


class FileRecord(Record, frozen=True):
    path: str
    size: Bytes
    sha256: Digest


class EntryRecord(Record, frozen=True):
    """An entry; `sha256` is that of the program and is filled in by the writer ("" until then)."""

    kind: Kind
    context_class: Count
    rows: Count
    part: Name
    program: str
    sha256: Digest


class TokenizerFacts(Record, frozen=True):
    chat_template: str | None
    bos_token: str | None
    eos_token: str | None
    stop_ids: tuple[Count, ...]


class CudaValidity(Record, frozen=True):
    """The compute capability cubins are made for, and the least version of CUDA that the driver must speak."""

    capability: Version
    driver: Version


class Validity(Record, frozen=True):
    """Facts that refuse a machine. `flags` are the CPU flags the kernels use.

    Where `cuda` is given, `arch` and `abi` are those of the library that brings weights to a GPU, and no flag counts.
    """

    arch: Name
    isa_level: Name
    flags: tuple[Name, ...]
    abi: Name
    cuda: CudaValidity | None


class CudaPriceFacts(Record, frozen=True):
    """A GPU as prices depend on it; `memory` in bytes."""

    product: Name
    multiprocessors: Capacity
    memory: Bytes


class PriceFacts(Record, frozen=True):
    """Facts of the machine the prices were measured on; `memory` in bytes. `gpu` where the programs run on one."""

    product: Name
    cores: Capacity
    memory: Bytes
    gpu: CudaPriceFacts | None


class Host(Record, frozen=True):
    validity: Validity
    price: PriceFacts


class ProofSummary(Record, frozen=True):
    """How many cases were compared with one-token steps, and in how many a bit differed."""

    cases: Count
    differing: Count


class BuiltHere(Record, frozen=True):
    """`key` names a machine's key, `token` proves that its holder sealed this content."""

    key: Annotated[str, Meta(pattern=r"\A[0-9a-f]{16}\Z")]
    token: Digest


class Draft(Record, frozen=True, kw_only=True, omit_defaults=True):
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
    quality: Quality | None
    drafter: DrafterRecord | None = None
    resolved: Resolved


class Manifest(Draft, frozen=True, kw_only=True):
    """A whole manifest. `content_id` covers what a second build repeats, `measured_id` what this build measured."""

    format: Literal[4]
    files: tuple[FileRecord, ...]
    build_id: Digest
    content_id: Digest
    measured_id: Digest
    built_here: BuiltHere | None

    def key(self, entry: EntryRecord) -> EntryKey:
        """The whole key of one of this manifest's entries."""
        return EntryKey(self.name, self.profile, self.device, entry.kind, entry.context_class, entry.rows, entry.part)

    def identified(self) -> Manifest:
        """These fields with the three digests that they give."""
        return msgspec.structs.replace(
            self,
            build_id=self.resolved.build_id(),
            content_id=self._root(self._repeated_facts(), measured=False),
            measured_id=self._root(msgspec.to_builtins(self.host.price), measured=True),
        )

    def _repeated_facts(self) -> dict[str, Any]:
        """The fields without the digests of themselves, what was measured, and who built it."""
        facts = msgspec.to_builtins(self)
        facts |= {"build_id": "", "content_id": "", "measured_id": "", "built_here": None}
        facts["host"]["price"] = None
        facts["files"] = [file for file in facts["files"] if not layout.is_measured(file["path"])]
        return facts

    def _root(self, facts: dict[str, Any], *, measured: bool) -> str:
        """Merkle root of the files that are measured, or of those that are not, and of `facts` as the manifest."""
        data = canonical.encode(facts)
        leaves = [(f.path, f.size, f.sha256) for f in self.files if layout.is_measured(f.path) is measured]
        return digest.merkle_root([*leaves, (layout.MANIFEST, len(data), digest.sha256_bytes(data))])


def encode(manifest: Manifest) -> bytes:
    """The one spelling of a manifest."""
    return canonical.encode(msgspec.to_builtins(manifest))
