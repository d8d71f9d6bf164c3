"""Makes `model.sig` with OpenSSF model-signing, offline, and puts it into a sealed bundle in one step.

Knows nothing of who trusts the key.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

from tandem.artifacts import envelope, layout, signature, staging
from tandem.artifacts.manifest import Manifest
from tandem.artifacts.reader import open_bundle
from tandem.artifacts.signature import PublicKey
from tandem.errors import BundleCorrupt, UsageError


def sign(bundle: Path, key: Path, password: str | None = None) -> PublicKey:
    """Signs every file of the bundle and its manifest; returns the public half of `key`, a PEM file.

    An earlier signature is replaced. BundleCorrupt for a byte that is not as it was sealed, which nobody should
    sign, UsageError for a key that cannot be used.
    """
    library = _library()
    bundle = bundle.resolve()
    try:
        bundle.name.encode()
    except UnicodeEncodeError:
        raise UsageError(f"{bundle}: a signature states the folder's name, which is not UTF-8; rename it") from None
    manifest = open_bundle(bundle).manifest
    secret = password.encode() if password else None
    public = _public_half(key, secret)
    folder, _ = staging.begin(bundle)
    lock = staging.lock(folder)
    try:
        made = folder / layout.SIGNATURE
        _make(library, bundle, made, key, secret)
        _check(made, manifest, public)
        made.chmod(0o444)
        staging.sync(made)
        os.replace(made, bundle / layout.SIGNATURE)
        staging.sync(bundle)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(lock)
    return public


def is_encrypted(key: Path) -> bool:
    """Whether the PEM file wants a password."""
    return b"ENCRYPTED" in key.read_bytes()


def _library() -> Any:
    try:
        import model_signing
    except ModuleNotFoundError as error:
        raise UsageError(
            f"signing needs {error.name}, which is not installed: pip install 'tandem-llm[sign]'"
        ) from None
    return model_signing


def _make(library: Any, bundle: Path, made: Path, key: Path, secret: bytes | None) -> None:
    hashing = library.hashing.Config().use_file_serialization(hashing_algorithm="sha256")
    hashing.set_ignored_paths(paths=[layout.SIGNATURE], ignore_git_paths=False)
    signer = library.signing.Config().use_elliptic_key_signer(private_key=key, password=secret)
    signer.set_hashing_config(hashing).sign(bundle, made)


def _check(made: Path, manifest: Manifest, public: PublicKey) -> None:
    """Holds what was signed, which the library has read byte by byte, against what was sealed."""
    signed = envelope.decode(made.read_bytes())
    digests = signed.digests()
    for file in manifest.files:
        if (found := digests.get(file.path)) != file.sha256:
            raise BundleCorrupt(f"{file.path}: sha256 {file.sha256} wanted, {found} found; copy or compile it again")
    signature.check(signed, manifest, public)


def _public_half(key: Path, secret: bytes | None) -> PublicKey:
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives import serialization

    data = key.read_bytes()
    try:
        private = serialization.load_pem_private_key(data, secret)
    except TypeError:  # a password for a key that has none, or the other way round
        given = "wants no password" if secret else "wants a password; set TANDEM_BUNDLE_SIGN_PASSWORD"
        raise UsageError(f"{key}: the key {given}") from None
    except (ValueError, UnsupportedAlgorithm):
        fault = "the password is wrong, or it is no private key" if secret else "no private key"
        raise UsageError(f"{key}: {fault} in PEM form; see tandem-bundle sign --help for how to make one") from None
    return signature.public_key(key, private.public_key())
