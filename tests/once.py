"""What is made once for all processes of a test run: the first to ask makes it, the others wait and take it.

Knows nothing of what is made.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

PLACE = "TANDEM_TESTS_PLACE"
"""Names the folder of the run in the environment of its processes."""


def begin() -> Callable[[], None] | None:
    """Makes the folder of this run, unless this process is part of one; what to call at the run's end."""
    if PLACE in os.environ:
        return None
    os.environ[PLACE] = place = tempfile.mkdtemp(prefix="tandem-tests-")
    return lambda: shutil.rmtree(place, ignore_errors=True)


def place() -> Path:
    return Path(os.environ[PLACE])


@contextmanager
def alone(path: Path) -> Iterator[None]:
    """One process at a time is within such a block of `path`, a file made for that."""
    with path.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def once(name: str, make: Callable[[Path], None]) -> Path:
    """The folder that `make` fills, one per `name`; it may fail, and is then tried again by the next who asks."""
    short = re.sub(r"[^a-z0-9]+", "-", name.lower())[:40] + "-" + hashlib.sha256(name.encode()).hexdigest()[:16]
    folder, done = place() / short, place() / f"{short}.done"
    with alone(place() / f"{short}.lock"):
        if not done.exists():
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir()
            make(folder)
            done.touch()
    return folder
