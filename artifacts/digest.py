"""The digests of a bundle: of a file, of all bytes (`content_id`) and of a resolved configuration (`build_id`).

Knows nothing of the manifest's fields.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from tandem.artifacts import canonical

Progress = Callable[[int], None]
"""Called with the number of bytes handled since the last call."""

Leaf = tuple[str, int, str]
"""Path, size in bytes, sha256 as 64 hex digits."""

_CHUNK = 256 << 10


def sha256_bytes(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def sha256_file(path: Path, progress: Progress | None = None) -> str:
    """sha256 of the file at `path` as 64 hex digits, read in pieces. OSError as `open` raises it."""
    digest = hashlib.sha256()
    buffer = memoryview(bytearray(_CHUNK))
    with open(path, "rb", buffering=0) as file:
        while count := file.readinto(buffer):
            digest.update(buffer[:count])
            if progress:
                progress(count)
    return digest.hexdigest()


def build_id(resolved: Mapping[str, object]) -> str:
    """sha256 of the resolved configuration as compact canonical JSON."""
    return sha256_bytes(canonical.encode_compact(resolved))


def merkle_root(leaves: Iterable[Leaf]) -> str:
    """Root over (path, size, sha256) sorted by path, as `docs/bundle.md` draws it. At least one leaf."""
    nodes = [_leaf(*leaf) for leaf in sorted(leaves)]
    while len(nodes) > 1:
        pairs = [_node(nodes[i], nodes[i + 1]) for i in range(0, len(nodes) - 1, 2)]
        nodes = pairs + nodes[2 * len(pairs) :]
    return nodes[0].hex()


def _leaf(path: str, size: int, sha256: str) -> bytes:
    body = path.encode() + b"\x00" + size.to_bytes(8, "little") + bytes.fromhex(sha256)
    return hashlib.sha256(b"\x00" + body).digest()


def _node(left: bytes, right: bytes) -> bytes:
    return hashlib.sha256(b"\x01" + left + right).digest()
