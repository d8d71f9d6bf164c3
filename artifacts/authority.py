"""Whose signatures this user believes: public keys put into a folder, or named on the command line.

Knows nothing of where a bundle was built.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Sequence
from pathlib import Path

from tandem.artifacts import layout, signature
from tandem.artifacts.manifest import Manifest
from tandem.artifacts.signature import PublicKey
from tandem.errors import BundleUntrusted


def keys_path() -> Path:
    """Where trusted keys lie: `$XDG_CONFIG_HOME/tandem/trusted-keys`, in `~/.config` if that is unset."""
    config = os.environ.get("XDG_CONFIG_HOME", "")
    try:
        base = Path(config) if os.path.isabs(config) else Path.home() / ".config"
    except RuntimeError:
        raise BundleUntrusted("no home folder to look for trusted keys in; set XDG_CONFIG_HOME") from None
    return base / "tandem" / "trusted-keys"


def fault(bundle: Path, manifest: Manifest, keys: Sequence[Path] = ()) -> str | None:
    """Why the signature in the folder `bundle` vouches for nothing here, None if a trusted key made it.

    `keys` are PEM files trusted beside the configured ones. BundleUntrusted for a signature that a trusted key
    did not make, or made for another bundle.
    """
    signed = signature.read(bundle)
    if signed is None:
        return f"it is not signed ({layout.SIGNATURE})"
    trusted = [*map(signature.load_key, keys), *_configured()]
    key = next((key for key in trusted if key.hint == signed.hint), None)
    if key is None:
        return (
            f"the key that {layout.SIGNATURE} names, {signed.hint[:16]}, is not trusted: "
            f"give it with --trust-key, or put it into {keys_path()}"
        )
    signature.check(signed, manifest, key)
    return None


def _configured() -> list[PublicKey]:
    folder = keys_path()
    try:
        paths = sorted(folder.glob("*.pem"))
    except OSError:
        return []
    for path in (folder, *paths) if paths else ():
        facts = path.stat()
        if facts.st_mode & (stat.S_IWGRP | stat.S_IWOTH) or facts.st_uid not in (0, os.geteuid()):
            raise BundleUntrusted(f"{path}: others may change who is trusted; make it yours alone (chmod go-w)")
    return [signature.load_key(path) for path in paths]
