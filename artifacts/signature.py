"""Holds a bundle's `model.sig` against a public key: did its holder sign this manifest and these files?

Knows nothing of private keys or of who is trusted. The format is OpenSSF model-signing's; `cryptography` is enough.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tandem.artifacts import digest, envelope, folder, layout
from tandem.artifacts.envelope import Envelope
from tandem.artifacts.manifest import Manifest, encode
from tandem.errors import BundleUntrusted, UsageError

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePublicKey

_HASHES = {"secp256r1": "SHA256", "secp384r1": "SHA384", "secp521r1": "SHA512"}
"""Which hash goes with a curve, as Sigstore has it."""


@dataclass(frozen=True, slots=True)
class PublicKey:
    """A key to check signatures with; `hint` is how signatures name it: SHA-256 of its PEM form, 64 hex digits."""

    path: Path
    hint: str
    key: EllipticCurvePublicKey


def load_key(path: Path) -> PublicKey:
    """The public key in a PEM file. UsageError if it holds none, or one of another kind than P-256, P-384, P-521."""
    try:
        from cryptography.exceptions import UnsupportedAlgorithm
        from cryptography.hazmat.primitives import serialization
    except ModuleNotFoundError as error:
        raise UsageError(
            f"checking a signature needs {error.name}, which is not installed: pip install 'tandem-llm[verify]'"
        ) from None
    try:
        key = serialization.load_pem_public_key(path.read_bytes())
    except (ValueError, UnsupportedAlgorithm):
        raise UsageError(
            f"{path}: no public key in PEM form; openssl pkey -pubout makes one of a private key"
        ) from None
    return public_key(path, key)


def public_key(path: Path, key: object) -> PublicKey:
    """`key`, one of the library `cryptography`, from `path`. UsageError for a kind that signs no bundles."""
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePublicKey

    if not isinstance(key, EllipticCurvePublicKey) or key.curve.name not in _HASHES:
        raise UsageError(f"{path}: not a key on the curve P-256, P-384 or P-521; bundles are signed with these")
    pem = key.public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
    return PublicKey(path, digest.sha256_bytes(pem), key)


def read(bundle: Path) -> Envelope | None:
    """The signature in the folder `bundle`, None where there is none. BundleCorrupt if it is no such file."""
    try:
        (bundle / layout.SIGNATURE).lstat()
    except FileNotFoundError:
        return None
    return envelope.decode(folder.read(bundle, layout.SIGNATURE, layout.MAX_JSON_BYTES))


def check(signature: Envelope, manifest: Manifest, key: PublicKey) -> None:
    """BundleUntrusted unless `key` signed this manifest and exactly the files it lists, by their digests.

    No file is read: that they have these digests is for the caller to hold.
    """
    if signature.hint != key.hint or not _made_with(key, signature):
        raise BundleUntrusted(f"{layout.SIGNATURE}: not made with the key in {key.path}; ask who sent you the bundle")
    signed = signature.digests()
    held = {file.path: file.sha256 for file in manifest.files}
    held[layout.MANIFEST] = digest.sha256_bytes(encode(manifest))
    for name in sorted(signed.keys() | held.keys()):
        if signed.get(name) != held.get(name):
            raise BundleUntrusted(
                f"{layout.SIGNATURE}: {name} is {signed.get(name, 'nothing')} where it was signed, "
                f"{held.get(name, 'nothing')} here; it belongs to another bundle"
            )


def _made_with(key: PublicKey, signature: Envelope) -> bool:
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.asymmetric.ec import ECDSA

    try:
        key.key.verify(signature.signature, signature.message, ECDSA(getattr(hashes, _HASHES[key.key.curve.name])()))
    except InvalidSignature:
        return False
    return True
