"""Whose native code may be loaded: built by this user on this machine, signed by a trusted key, or with a flag.

Knows nothing of what the code does. The key never leaves its file; bundles carry a code over their ids.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import os
import secrets
import stat
from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path

from tandem.artifacts.manifest import BuiltHere, Manifest
from tandem.errors import BundleUntrusted

KEY_BYTES = 32
REMEDY = "compile the model on this machine, or pass --trust-native if you trust where the bundle comes from"


class Origin(StrEnum):
    """Where a bundle was sealed, as far as this machine can tell."""

    HERE = "here"
    ELSEWHERE = "elsewhere"
    FORGED = "forged"


def key_path() -> Path:
    """Where this user's key lies: `$XDG_STATE_HOME/tandem/machine.key`, in `~/.local/state` if that is unset."""
    state = os.environ.get("XDG_STATE_HOME", "")
    try:
        base = Path(state) if os.path.isabs(state) else Path.home() / ".local" / "state"
    except RuntimeError:
        raise BundleUntrusted("no home folder to keep this machine's key in; set XDG_STATE_HOME") from None
    return base / "tandem" / "machine.key"


def prepare() -> None:
    """Makes this user's key if there is none, so that a long build cannot fail at its last step."""
    if _read_key() is None:
        _make_key()


def seal(content_id: str, measured_id: str) -> BuiltHere:
    """Marks both as built here; makes the key on first use. BundleUntrusted for a key others may read."""
    key = _read_key() or _make_key()
    return BuiltHere(key=_key_id(key), token=_token(key, content_id, measured_id))


def origin(manifest: Manifest) -> Origin:
    """Where `manifest` was sealed. FORGED: it claims this machine's key, but for other content."""
    key, built = _read_key(), manifest.built_here
    if key is None or built is None or built.key != _key_id(key):
        return Origin.ELSEWHERE
    wanted = _token(key, manifest.content_id, manifest.measured_id)
    return Origin.HERE if hmac.compare_digest(built.token, wanted) else Origin.FORGED


def require(bundle: Path, manifest: Manifest, *, trust_native: bool = False, trust_keys: Sequence[Path] = ()) -> None:
    """BundleUntrusted unless native code of the bundle in the folder `bundle` may be loaded.

    `trust_keys` are public keys, PEM files, whose signature is believed beside that of the configured ones.
    """
    if trust_native:
        return
    found = origin(manifest)
    if found is Origin.FORGED:
        raise BundleUntrusted(
            f"{manifest.name}: built_here in manifest.json names this machine's key, but not this content; {REMEDY}"
        )
    if found is Origin.ELSEWHERE:
        from tandem.artifacts import authority

        if fault := authority.fault(bundle, manifest, trust_keys):
            raise BundleUntrusted(
                f"{manifest.name}: its native code was not built on this machine by this user "
                f"(built_here in manifest.json), and {fault}; {REMEDY}"
            )


def _key_id(key: bytes) -> str:
    return hashlib.sha256(key).hexdigest()[:16]


def _token(key: bytes, content_id: str, measured_id: str) -> str:
    return hmac.new(key, f"{content_id}:{measured_id}".encode(), hashlib.sha256).hexdigest()


def _read_key() -> bytes | None:
    path = key_path()
    try:
        file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except (FileNotFoundError, NotADirectoryError):
        return None
    with os.fdopen(file, "rb") as opened:
        facts, key = os.fstat(file), opened.read(KEY_BYTES + 1)
    private = stat.S_ISREG(facts.st_mode) and not facts.st_mode & 0o077 and facts.st_uid == os.geteuid()
    if not private or len(key) != KEY_BYTES:
        raise BundleUntrusted(f"{path}: not a key only you can read; delete it and compile your bundles again")
    return key


def _make_key() -> bytes:
    """A new key, or the one another process made first: a link appears whole or not at all."""
    path = key_path()
    draft = path.with_name(f".{path.name}.{os.getpid()}-{secrets.token_hex(4)}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            file.write(secrets.token_bytes(KEY_BYTES))
        with contextlib.suppress(FileExistsError):
            os.link(draft, path)
    except OSError as error:
        raise BundleUntrusted(
            f"{path}: this machine's key cannot be written there ({error.strerror}); "
            "set XDG_STATE_HOME to a folder that can be written to"
        ) from error
    finally:
        with contextlib.suppress(OSError):
            draft.unlink()
    key = _read_key()
    assert key is not None
    return key
