"""A bundle's way from a remote place to a folder: manifest first, each file on from where it stopped, all checked.

Knows nothing of protocols; `tandem.artifacts.shipping.oci` and `tandem.artifacts.shipping.hub` speak them.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Protocol, TypeVar

from tandem.artifacts import envelope, signature
from tandem.artifacts.digest import Progress
from tandem.artifacts.manifest import FileRecord, Manifest
from tandem.artifacts.shipping.landing import Landing
from tandem.artifacts.shipping.part import Part
from tandem.errors import BundleCorrupt, BundleUntrusted, TransferError, UsageError

PAUSES = (1.0, 2.0, 4.0, 8.0)
"""Seconds to wait after the first, second, ... failure in a row that may pass; after the last one it is told."""

T = TypeVar("T")
Meter = Callable[[int], AbstractContextManager[Progress]]
"""Shows how much of a number of bytes has come or gone."""


class Source(Protocol):
    """Where a bundle lies, at one moment: what is read later belongs to what was read first."""

    def manifest(self) -> bytes: ...

    def check(self, manifest: Manifest) -> None:
        """BundleCorrupt, which names the file, if the place says itself that it holds other files than listed."""

    def signature(self) -> bytes | None: ...

    def open(self, file: FileRecord, offset: int) -> AbstractContextManager[tuple[int, Iterator[bytes]]]:
        """Where the bytes begin that come, which is `offset` or 0, and the bytes.

        This and the others raise TransferError for a place that cannot be reached or says no.
        """


def pull(source: Source, target: Path, meter: Meter, *, replace: bool = False, key: Path | None = None) -> Manifest:
    """Brings the bundle at `source` to `target`, or goes on where an earlier run stopped; returns its manifest.

    With `key`, a public key in a PEM file, only if it signed the bundle. What the source serves is refused with
    BundleCorrupt or BundleUntrusted that names the file; nothing appears at `target` then.
    """
    public = signature.load_key(key) if key else None
    with Landing(target, patiently(source.manifest), replace=replace) as landing:
        source.check(landing.manifest)
        signed = patiently(source.signature)
        seal = envelope.decode(signed) if signed is not None else None
        if public is not None:
            if seal is None:
                raise BundleUntrusted(f"{landing.manifest.name}: not signed; leave out --key to pull it all the same")
            signature.check(seal, landing.manifest, public)
        _check_room(landing)
        with meter(sum(file.size for file in landing.manifest.files)) as progress:
            for file in landing.manifest.files:
                fetch(source, file, landing.path(file.path), progress)
        landing.publish(signed)
    return landing.manifest


def patiently(request: Callable[[], T]) -> T:
    """The answer to `request`, asked again after failures that may pass."""
    for pause in PAUSES:
        try:
            return request()
        except TransferError as error:
            if not error.passing:
                raise
        time.sleep(pause)
    return request()


def fetch(source: Source, file: FileRecord, path: Path, progress: Progress) -> None:
    """Makes the file at `path` what `file` says. BundleCorrupt if the source serves something else."""
    with Part(path, progress) as part:
        fresh = part.count == 0
        while True:
            _fill(source, file, part)
            if part.sha256 == file.sha256:
                return
            found = part.sha256
            part.restart()
            if fresh:
                raise BundleCorrupt(f"{file.path}: sha256 {file.sha256} wanted, {found} served; do not use this source")
            fresh = True  # what an earlier run left was bad: once more from the start


def _fill(source: Source, file: FileRecord, part: Part) -> None:
    failures = 0
    while part.count < file.size:
        before = part.count
        try:
            _read(source, file, part)
        except TransferError as error:
            failures = 1 if part.count > before else failures + 1
            if not error.passing or failures > len(PAUSES):
                raise
            time.sleep(PAUSES[failures - 1])


def _read(source: Source, file: FileRecord, part: Part) -> None:
    """What one request brings. A body that ends early without an error is all there is of the file."""
    with source.open(file, part.count) as (start, chunks):
        if start != part.count:
            part.restart()
        for chunk in chunks:
            if part.count + len(chunk) > file.size:
                part.restart()
                raise BundleCorrupt(f"{file.path}: {file.size} bytes wanted, more served; do not use this source")
            part.write(chunk)
    if part.count < file.size:
        raise BundleCorrupt(f"{file.path}: {file.size} bytes wanted, {part.count} served; push the bundle again")


def _check_room(landing: Landing) -> None:
    wanted, free = landing.missing(), shutil.disk_usage(landing.target.parent).free
    if wanted > free:
        raise UsageError(f"{landing.target}: {wanted:,} bytes are to come, {free:,} are free there; make room")
