"""The layers of `model.sig`: a Sigstore bundle around a DSSE envelope around an in-toto statement about files.

Reads them strictly; knows nothing of keys, and checks no signature.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
from dataclasses import dataclass
from typing import Any

import msgspec

from tandem.artifacts import canonical, layout
from tandem.errors import BundleCorrupt

_BUNDLE = "application/vnd.dev.sigstore.bundle.v0.3+json"
_PAYLOAD = "application/vnd.in-toto+json"
_STATEMENT = "https://in-toto.io/Statement/v1"
_PREDICATE = "https://model_signing/signature/v1.0"
REMEDY = "sign the bundle again"


class _Record(msgspec.Struct, frozen=True, rename="camel"):
    """Fields that are read; the format allows others beside them."""


class _Hint(_Record, frozen=True):
    hint: str


class _Material(_Record, frozen=True):
    public_key: _Hint


class _Signature(_Record, frozen=True):
    sig: str


class _Envelope(_Record, frozen=True):
    payload: str
    payload_type: str
    signatures: tuple[_Signature, ...]


class _File(_Record, frozen=True):
    media_type: str
    verification_material: _Material
    dsse_envelope: _Envelope


class _Resource(msgspec.Struct, frozen=True):
    name: str
    algorithm: str
    digest: str


class _Serialization(msgspec.Struct, frozen=True):
    method: str
    hash_type: str


class _Predicate(msgspec.Struct, frozen=True):
    resources: tuple[_Resource, ...]
    serialization: _Serialization


class _Subject(msgspec.Struct, frozen=True):
    digest: dict[str, str]


class _Statement(msgspec.Struct, frozen=True):
    type: str = msgspec.field(name="_type")
    subject: tuple[_Subject, ...]
    predicate_type: str = msgspec.field(name="predicateType")
    predicate: _Predicate


@dataclass(frozen=True, slots=True)
class Envelope:
    """What `model.sig` holds, nothing of it checked: what names the key, what was signed, and the signature."""

    hint: str
    payload: bytes
    signature: bytes

    @property
    def message(self) -> bytes:
        """The bytes that are signed: DSSE's encoding, in which type and payload cannot be shifted into one another."""
        return f"DSSEv1 {len(_PAYLOAD)} {_PAYLOAD} {len(self.payload)} ".encode() + self.payload

    def digests(self) -> dict[str, str]:
        """Path -> SHA-256 (hex) of every file the payload speaks of. BundleCorrupt if it speaks of other things."""
        statement: _Statement = _convert(canonical.decode(self.payload, layout.SIGNATURE, REMEDY), _Statement)
        resources, how = statement.predicate.resources, statement.predicate.serialization
        kind = (statement.type, statement.predicate_type, how.method, how.hash_type)
        if kind != (_STATEMENT, _PREDICATE, "files", "sha256") or any(r.algorithm != "sha256" for r in resources):
            raise _corrupt("signs other things than files by SHA-256")
        digests = {resource.name: resource.digest for resource in resources}
        try:
            root = hashlib.sha256(b"".join(bytes.fromhex(resource.digest) for resource in resources)).hexdigest()
        except ValueError:
            raise _corrupt("a digest that is not hexadecimal") from None
        if len(digests) != len(resources) or [subject.digest.get("sha256") for subject in statement.subject] != [root]:
            raise _corrupt("contradicts itself")
        return digests


def decode(data: bytes) -> Envelope:
    """The layers spelt by `data`. BundleCorrupt unless it is a signature made with a key."""
    file: _File = _convert(canonical.decode(data, layout.SIGNATURE, REMEDY), _File)
    inner = file.dsse_envelope
    if file.media_type != _BUNDLE or inner.payload_type != _PAYLOAD or len(inner.signatures) != 1:
        raise _corrupt("not a signature made with a key")
    hint = file.verification_material.public_key.hint
    return Envelope(hint, _base64(inner.payload), _base64(inner.signatures[0].sig))


def _convert(value: object, record: type[Any]) -> Any:
    try:
        return msgspec.convert(value, record)
    except msgspec.ValidationError as error:
        raise _corrupt(str(error)) from None


def _base64(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise _corrupt("not Base64") from None


def _corrupt(fault: str) -> BundleCorrupt:
    return BundleCorrupt(f"{layout.SIGNATURE}: {fault}; {REMEDY}")
