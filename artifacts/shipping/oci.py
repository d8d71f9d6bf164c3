"""Bundles as artifacts of an OCI registry: the manifest as config, one layer per file under its path as title.

Knows the artifact's shape; HTTP is `tandem.artifacts.shipping.registry`'s.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager

import msgspec

from tandem.artifacts import canonical, layout
from tandem.artifacts.digest import Progress, sha256_bytes
from tandem.artifacts.manifest import FileRecord, Manifest
from tandem.artifacts.shipping.address import OciAddress
from tandem.artifacts.shipping.outbox import Outbox
from tandem.artifacts.shipping.registry import Repository
from tandem.artifacts.shipping.transfer import patiently
from tandem.errors import BundleCorrupt, BundleError, UsageError

IMAGE = "application/vnd.oci.image.manifest.v1+json"
CONFIG = "application/vnd.tandem.bundle.manifest+json"
FILE = "application/vnd.tandem.bundle.file"
TITLE = "org.opencontainers.image.title"
MAX_IMAGE_BYTES = 4 << 20
"""What registries take at most for the list of layers."""


class _Blob(msgspec.Struct, frozen=True, rename="camel"):
    media_type: str
    digest: str
    size: int
    annotations: dict[str, str] = {}


class _Image(msgspec.Struct, frozen=True, rename="camel"):
    schema_version: int
    config: _Blob
    layers: tuple[_Blob, ...]


class OciSource:
    """The bundle at `address`, as it stands when its manifest is read."""

    def __init__(self, address: OciAddress, *, plain_http: bool = False) -> None:
        self._address = address
        self._repository = Repository(address, plain_http=plain_http)
        self._layers: dict[str, _Blob] = {}

    def manifest(self) -> bytes:
        path = f"manifests/{self._address.reference}"
        data = self._repository.read(path, MAX_IMAGE_BYTES, accept=IMAGE)
        if self._address.is_digest and f"sha256:{sha256_bytes(data)}" != self._address.reference:
            raise BundleCorrupt(f"{self._address}: the registry serves sha256:{sha256_bytes(data)} under this digest")
        try:
            image = msgspec.convert(canonical.decode(data, str(self._address), "push the bundle again"), _Image)
        except msgspec.ValidationError as error:
            raise BundleError(f"{self._address}: no bundle, but something else ({error})") from None
        if image.config.media_type != CONFIG:
            raise BundleError(f"{self._address}: no bundle, but {image.config.media_type}; was it pushed by Tandem?")
        self._layers = {layer.annotations.get(TITLE, ""): layer for layer in image.layers}
        return self._read(layout.MANIFEST, image.config, layout.MAX_MANIFEST_BYTES)

    def check(self, manifest: Manifest) -> None:
        for file in manifest.files:
            layer = self._layers.get(file.path)
            found = layer.digest if layer else "nothing"
            if layer is None or found != f"sha256:{file.sha256}":
                raise BundleCorrupt(
                    f"{file.path}: sha256:{file.sha256} wanted, {found} in the layers of {self._address}"
                )

    def signature(self) -> bytes | None:
        layer = self._layers.get(layout.SIGNATURE)
        return self._read(layout.SIGNATURE, layer, layout.MAX_JSON_BYTES) if layer else None

    def open(self, file: FileRecord, offset: int) -> AbstractContextManager[tuple[int, Iterator[bytes]]]:
        return self._repository.stream(f"blobs/sha256:{file.sha256}", offset)

    def _read(self, name: str, blob: _Blob, limit: int) -> bytes:
        data = self._repository.read(f"blobs/{blob.digest}", limit)
        if f"sha256:{sha256_bytes(data)}" != blob.digest:
            raise BundleCorrupt(f"{name}: {blob.digest} wanted, sha256:{sha256_bytes(data)} served by {self._address}")
        return data


def push(outbox: Outbox, address: OciAddress, progress: Progress, *, plain_http: bool = False) -> OciAddress:
    """Stores the bundle at `address`, whose tag moves at the very end; returns its address by digest.

    Files the registry has already are not sent again. The same bundle gives the same digest.
    """
    if address.is_digest:
        raise UsageError(f"{address}: give a tag to push to, as in oci://{address.host}/{address.repository}:v1")
    repository = Repository(address, plain_http=plain_http)
    layers = []
    for file in outbox.files:
        layers.append(_describe(FILE, file) | {"annotations": {TITLE: file.path}})
        _store(repository, outbox, file, progress)
    _store(repository, outbox, outbox.manifest_file, progress)
    image = {
        "schemaVersion": 2,
        "mediaType": IMAGE,
        "artifactType": CONFIG,
        "config": _describe(CONFIG, outbox.manifest_file),
        "layers": layers,
        "annotations": {TITLE: outbox.manifest.name},
    }
    data = canonical.encode_compact(image)
    patiently(lambda: repository.put(f"manifests/{address.reference}", data, IMAGE))
    return OciAddress(address.host, address.repository, f"sha256:{sha256_bytes(data)}")


def _describe(media_type: str, file: FileRecord) -> dict[str, object]:
    return {"mediaType": media_type, "digest": f"sha256:{file.sha256}", "size": file.size}


def _store(repository: Repository, outbox: Outbox, file: FileRecord, progress: Progress) -> None:
    digest = f"sha256:{file.sha256}"

    def store() -> None:
        if repository.exists(f"blobs/{digest}"):
            progress(file.size)
        else:
            repository.upload(digest, file.size, outbox.path / file.path, progress)

    patiently(store)
