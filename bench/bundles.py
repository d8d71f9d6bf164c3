"""The benchmark's bundles: compiled from a checkpoint for this CPU, and reused while it and the sources stay the same.

Knows nothing of how they are run.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Iterable
from pathlib import Path

from answer import CommandError, command

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / ".demo"
HYBRID = ROOT / "bench" / "demo-hybrid"
"""The small hybrid's checkpoint; `docs/training.md` says how it came about."""
# What a bundle is made from besides the checkpoint.
SOURCES = ("tandem", "artifacts", "compile", "kernels")


def place(profile: str, model: str = "smollm2") -> Path:
    return FOLDER / f"{model}-{profile}"


def build(checkpoint: Path, profile: str, model: str = "smollm2") -> bool:
    """Compile a bundle to its `place`; False if a sound one made from these very sources lies there already."""
    bundle = place(profile, model)
    stamp, sources = bundle.with_suffix(".sources"), fingerprint(checkpoint)
    if bundle.is_dir() and stamp.is_file() and stamp.read_text() == sources and sound(bundle):
        return False
    FOLDER.mkdir(exist_ok=True)
    flags = ("--profile", profile, "--device", "cpu", "-o", bundle, "--replace")
    command("tandem-compile", checkpoint, *flags, quiet=False)
    stamp.write_text(sources)
    return True


def build_all(checkpoint: Path, profiles: Iterable[str], model: str = "smollm2") -> dict[str, Path]:
    """Bundles by profile, each in its place."""
    found = {profile: place(profile, model) for profile in profiles}
    for profile, bundle in found.items():
        print(f"bundle {bundle}", file=sys.stderr)
        build(checkpoint, profile, model)
    return found


def sound(bundle: Path) -> bool:
    """Whether every file of the bundle has its digest."""
    try:
        command("tandem-bundle", "verify", bundle)
    except CommandError:
        return False
    return True


def fingerprint(checkpoint: Path) -> str:
    """sha256 over the checkpoint's files and the sources that read, lower, prove and write."""
    total = hashlib.sha256()
    parts = [checkpoint] if checkpoint.is_file() else sorted(checkpoint.glob("*"))
    for path in parts:
        if path.suffix in {".gguf", ".json", ".safetensors"}:
            total.update(f"{path.name}\0".encode() + path.read_bytes())
    for room in SOURCES:
        for path in sorted((ROOT / room).rglob("*.*")):
            if path.suffix in {".py", ".cpp", ".h"}:
                total.update(f"{path.relative_to(ROOT)}\0".encode() + path.read_bytes())
    return total.hexdigest()


def profile_of(bundle: Path) -> str:
    from tandem.artifacts.reader import read_manifest

    return read_manifest(bundle).profile


def on_gpu(bundle: Path) -> bool:
    """Whether it was compiled for one."""
    from tandem.artifacts.reader import read_manifest

    return read_manifest(bundle).host.price.gpu is not None


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
