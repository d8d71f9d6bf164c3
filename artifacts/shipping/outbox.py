"""A bundle that is about to be sent: every byte of it checked, its manifest and signature among the files.

Knows nothing of where it goes.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from tandem.artifacts import digest, envelope, layout
from tandem.artifacts.manifest import FileRecord, Manifest, encode
from tandem.artifacts.reader import open_bundle
from tandem.artifacts.shipping.transfer import Meter


@dataclass(frozen=True, slots=True)
class Outbox:
    """The bundle in the folder `path`; `files` are the listed ones and the signature, if there is one."""

    path: Path
    manifest: Manifest
    files: tuple[FileRecord, ...]

    @property
    def manifest_file(self) -> FileRecord:
        """The manifest as a file."""
        data = encode(self.manifest)
        return FileRecord(path=layout.MANIFEST, size=len(data), sha256=digest.sha256_bytes(data))

    @property
    def size(self) -> int:
        """Bytes to send where nothing is there yet."""
        return self.manifest_file.size + sum(file.size for file in self.files)


def pack(bundle: Path, meter: Meter) -> Outbox:
    """Opens and verifies the bundle. BundleError for one that should not be sent."""
    opened = open_bundle(bundle)
    files = opened.manifest.files
    with meter(sum(file.size for file in files)) as progress:
        opened.verify(progress)
    signed = bundle / layout.SIGNATURE
    if signed.exists():
        data = signed.read_bytes()
        envelope.decode(data)
        files += (FileRecord(path=layout.SIGNATURE, size=len(data), sha256=digest.sha256_bytes(data)),)
    return Outbox(bundle, opened.manifest, files)
