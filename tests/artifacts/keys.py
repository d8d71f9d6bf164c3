"""Key pairs as PEM files, made afresh."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec


def write_pair(folder: Path, name: str, key: Any = None, password: bytes | None = None) -> tuple[Path, Path]:
    """Private and public half of `key`, by default a fresh one on P-256, in `folder`."""
    key = key or ec.generate_private_key(ec.SECP256R1())
    hidden = serialization.BestAvailableEncryption(password) if password else serialization.NoEncryption()
    private, public = folder / f"{name}.pem", folder / f"{name}.pub.pem"
    pem, pkcs8 = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
    private.write_bytes(key.private_bytes(pem, pkcs8, hidden))
    public.write_bytes(key.public_key().public_bytes(pem, serialization.PublicFormat.SubjectPublicKeyInfo))
    return private, public
