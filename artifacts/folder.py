"""A folder that anybody may have filled, held against a list of names and sizes without following a link.

Knows nothing of what the files hold.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path

from tandem.artifacts import layout
from tandem.errors import BundleCorrupt


def read(folder: Path, name: str, limit: int) -> bytes:
    """The bytes of a regular file of at most `limit` bytes. BundleCorrupt otherwise."""
    try:
        # Non-blocking, so that a pipe of this name does not hold us up.
        file = os.open(folder / name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        raise BundleCorrupt(f"{name}: missing in {folder}; this is no bundle, or not a whole one") from None
    except OSError as error:
        raise BundleCorrupt(f"{name}: cannot be read ({error.strerror}); it must be a regular file") from None
    if not stat.S_ISREG(os.fstat(file).st_mode):
        os.close(file)
        raise BundleCorrupt(f"{name}: not a regular file; {layout.REMEDY}")
    with os.fdopen(file, "rb") as opened:
        data = opened.read(limit + 1)
    if len(data) > limit:
        raise BundleCorrupt(f"{name}: over {limit} bytes; {layout.REMEDY}")
    return data


def check_listing(folder: Path, sizes: Mapping[str, int]) -> None:
    """BundleCorrupt, which names the file, unless `folder` holds its manifest and exactly the files of `sizes`.

    A signature may lie beside them: it is made later, and looked into only where it is asked for.
    """
    folders = {parent.as_posix() for path in sizes for parent in Path(path).parents}
    missing = set(sizes)
    for name, facts in _walk(folder, ""):
        if stat.S_ISDIR(facts.st_mode):
            if name not in folders:
                raise BundleCorrupt(f"{name}/: a folder that {layout.MANIFEST} does not list; take it away")
        elif not stat.S_ISREG(facts.st_mode):
            raise BundleCorrupt(f"{name}: a link or special file; a bundle holds plain files only")
        elif name in (layout.MANIFEST, layout.SIGNATURE):
            continue
        elif name not in sizes:
            raise BundleCorrupt(f"{name}: a file that {layout.MANIFEST} does not list; take it away")
        elif facts.st_size != sizes[name]:
            raise BundleCorrupt(f"{name}: {sizes[name]} bytes wanted, {facts.st_size} found; copy or compile it again")
        missing.discard(name)
    if missing:
        raise BundleCorrupt(f"{min(missing)}: missing; {layout.REMEDY}")


def _walk(folder: Path, below: str) -> Iterator[tuple[str, os.stat_result]]:
    """Names relative to the bundle with their own facts, a folder before what it holds."""
    with os.scandir(folder) as found:
        entries = sorted(found, key=lambda entry: entry.name)
    for entry in entries:
        name, facts = below + entry.name, entry.stat(follow_symlinks=False)
        yield name, facts
        if stat.S_ISDIR(facts.st_mode):
            yield from _walk(folder / entry.name, name + "/")
