"""The benchmark's bundles: compiled from the one checkpoint for this CPU, and reused while the sources stay the same.

Knows nothing of how they are run.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

from answer import CommandError, command
from smollm2 import SHA256

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / ".demo"
# What a bundle is made from besides the checkpoint.
SOURCES = ("tandem", "artifacts", "compile", "kernels")


def place(profile: str) -> Path:
    return FOLDER / f"smollm2-{profile}"


def build(checkpoint: Path, profile: str) -> bool:
    """Compile a bundle to its `place`; False if a sound one made from these very sources lies there already."""
    bundle = place(profile)
    stamp, sources = bundle.with_suffix(".sources"), fingerprint()
    if bundle.is_dir() and stamp.is_file() and stamp.read_text() == sources and sound(bundle):
        return False
    FOLDER.mkdir(exist_ok=True)
    flags = ("--profile", profile, "--device", "cpu", "-o", bundle, "--replace")
    command("tandem-compile", checkpoint, *flags, quiet=False)
    stamp.write_text(sources)
    return True


def sound(bundle: Path) -> bool:
    """Whether every file of the bundle has its digest."""
    try:
        command("tandem-bundle", "verify", bundle)
    except CommandError:
        return False
    return True


def fingerprint() -> str:
    """sha256 over the checkpoint's digest and the sources that read, lower, prove and write."""
    total = hashlib.sha256(SHA256.encode())
    for room in SOURCES:
        for path in sorted((ROOT / room).rglob("*.*")):
            if path.suffix in {".py", ".cpp", ".h"}:
                total.update(f"{path.relative_to(ROOT)}\0".encode() + path.read_bytes())
    return total.hexdigest()


def profile_of(bundle: Path) -> str:
    from tandem.artifacts.reader import read_manifest

    return read_manifest(bundle).profile


def step_bytes(bundle: Path) -> int:
    """Bytes of weights that one step of one token reads: all but the tables it takes a single row of.

    Those are the rope tables, and the embedding where the head has a matrix of its own.
    """
    from tandem.artifacts.reader import open_bundle

    spans = open_bundle(bundle).weights.spans
    looked_up = {"embedding"} if "head" in spans else set()
    return sum(
        span.nbytes for name, span in spans.items() if not name.startswith(("rope.", "pad.")) and name not in looked_up
    )
