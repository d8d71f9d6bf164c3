"""One door for every kind of checkpoint: a folder, a .gguf file or a hub id; and one for drafters.

Knows only how to tell them apart.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

from tandem.compile.checkpoints.base import Checkpoint
from tandem.errors import CheckpointError, UsageError

if TYPE_CHECKING:
    from tandem.compile.checkpoints.drafter import DrafterCheckpoint

_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]+")


def open_checkpoint(
    source: str, *, revision: str | None = None, offline: bool = False, cache_dir: Path | str | None = None
) -> Checkpoint:
    """Open `source`: an existing folder or .gguf file, else a hub id `org/name`.

    `revision` (branch, tag or commit), `offline` (use only what was fetched before) and `cache_dir` (the hub's own
    cache if None) are for hub ids; a revision with a local source is a UsageError. CheckpointError if it is missing,
    damaged or of an unknown kind.
    """
    path = Path(source).expanduser()
    if _on_hub(path, source):
        from tandem.compile.checkpoints.hub import open_hub

        return open_hub(source, revision=revision, offline=offline, cache_dir=cache_dir)
    if revision is not None:
        raise UsageError(f"{source}: a local checkpoint has no revision: leave --revision out, or give a hub id")
    if path.is_dir():
        from tandem.compile.checkpoints.hf import HfCheckpoint

        return HfCheckpoint(path)
    if path.is_file() and path.suffix == ".gguf":
        from tandem.compile.checkpoints.gguf import GgufCheckpoint

        return GgufCheckpoint(path)
    if path.exists():
        raise CheckpointError(f"{source}: wanted a folder or a .gguf file, found another kind of file: give its folder")
    raise CheckpointError(f"{source}: no such folder or .gguf file, nor a hub id (org/name): check the spelling")


def open_drafter(source: str, *, offline: bool = False, cache_dir: Path | str | None = None) -> DrafterCheckpoint:
    """Open the drafter at `source`: an existing folder, else a hub id, whose newest revision is taken.

    The rest is as in `open_checkpoint`.
    """
    from tandem.compile.checkpoints.drafter import DrafterCheckpoint

    path = Path(source).expanduser()
    if not _on_hub(path, source):
        return DrafterCheckpoint(path)
    from tandem.compile.checkpoints.hub import fetch_model

    folder, origin = fetch_model(source, (), revision=None, offline=offline, cache_dir=cache_dir)
    return DrafterCheckpoint(folder, origin)


def _on_hub(path: Path, source: str) -> bool:
    """Whether `source`, which as a local one lies at `path`, names a repository."""
    return not path.exists() and _HUB_ID.fullmatch(source) is not None and not source.endswith(".gguf")
