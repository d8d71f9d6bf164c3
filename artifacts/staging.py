"""Folders that are written beside their place and put there whole: names, locks, syncing, the last rename.

Knows nothing of what the folders hold, except that only an empty folder or one of the same kind is ever replaced.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import os
import re
import secrets
import shutil
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

from tandem.artifacts import layout
from tandem.errors import UsageError

_AT_FDCWD = -100
_RENAME_EXCHANGE = 2
_ATTEMPTS = 100


@dataclass(frozen=True, slots=True)
class Sort:
    """A kind of folder: what messages call it, and the file by which it is known."""

    word: str
    mark: str


BUNDLE = Sort("bundle", layout.MANIFEST)
CORPUS = Sort("corpus", "meta.json")


class Stage:
    """A partial folder for `target`, removed when the block is left; `publish` puts it in place.

    UsageError if `target` exists and may not be replaced.
    """

    def __init__(self, target: Path, sort: Sort, *, replace: bool) -> None:
        self.target = target.parent.resolve() / target.name if target.name else target.resolve()
        self.folder: Path | None = None
        self._sort, self._replace = sort, replace
        self._lock = -1
        self._made: list[Path] = []

    def __enter__(self) -> Stage:
        check_target(self.target, self._replace, self._sort)
        self.folder, self._made = begin(self.target)
        self._lock = lock(self.folder)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        if self.folder is not None:
            shutil.rmtree(self.folder, ignore_errors=True)
        self.folder = None
        drop(self._made)  # published or not: with something inside they stay
        if self._lock >= 0:
            os.close(self._lock)

    def publish(self) -> None:
        """Renames the folder, settled before, to its place. UsageError if something has appeared there meanwhile."""
        assert self.folder is not None, "outside the with block, or published"
        self.folder = exchange(self.folder, self.target, self._replace, self._sort)
        sync(self.target.parent)


def prefix(target: Path) -> str:
    """How the names of partial folders for `target` begin; a process id and a random part follow."""
    return f".{target.name}.partial-"


def check_target(target: Path, replace: bool, sort: Sort = BUNDLE) -> None:
    """UsageError unless a folder of this sort may be published at `target`."""
    if not os.path.lexists(target):
        return
    if target.is_symlink() or not target.is_dir():
        raise UsageError(f"{target} exists and is no folder; choose another place for the {sort.word}")
    if not any(target.iterdir()):
        return
    if not (target / sort.mark).is_file():
        raise UsageError(f"{target} exists and is no {sort.word}, so it is not replaced; choose another place")
    if not replace:
        raise UsageError(f"{target} exists; choose another place, or give --replace")


def begin(target: Path) -> tuple[Path, list[Path]]:
    """An empty partial folder for `target`, and the folders made for it to lie in, innermost first.

    UsageError where none can be made.
    """
    folder = target.with_name(f"{prefix(target)}{os.getpid()}-{secrets.token_hex(4)}")
    made: list[Path] = []
    try:
        made = [parent for parent in target.parents if not parent.exists()]
        target.parent.mkdir(parents=True, exist_ok=True)
        sweep(target)
        folder.mkdir(mode=0o700)
    except OSError as error:
        drop(made)
        raise UsageError(f"{target}: no folder can be made there ({error.strerror}); choose another place") from error
    return folder, made


def drop(folders: list[Path]) -> None:
    """Removes those of `folders` that are empty."""
    for folder in folders:
        with contextlib.suppress(OSError):
            folder.rmdir()


def lock(folder: Path) -> int:
    """A descriptor that marks `folder` as in use for as long as it is open."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        # Some network file systems know no locks; the process id still guards the folder.
        if error.errno not in (errno.ENOLCK, errno.ENOTSUP, errno.ENOSYS, errno.EBADF):
            os.close(descriptor)
            raise
    return descriptor


def sweep(target: Path) -> None:
    """Removes partial folders for `target` whose process is gone.

    Both the process id and the lock must say so: an id means nothing in another container.
    """
    pattern = re.compile(re.escape(prefix(target)) + r"([0-9]+)-[0-9a-f]+")
    for folder in target.parent.iterdir():
        match = pattern.fullmatch(folder.name)
        if not match or folder.is_symlink() or _alive(int(match.group(1))):
            continue
        try:
            descriptor = lock(folder)
        except OSError:
            continue
        shutil.rmtree(folder, ignore_errors=True)
        os.close(descriptor)


def settle(folder: Path) -> None:
    """Makes every file 0444 and every folder 0755, and all of it durable; drops folders that stayed empty."""
    for parent, _, names in os.walk(folder, topdown=False):
        if not os.listdir(parent):
            os.rmdir(parent)
            continue
        for path in (Path(parent, name) for name in names):
            if not path.is_symlink():  # what it points at is not ours to change
                path.chmod(0o444)
                sync(path)
        os.chmod(parent, 0o755)
        sync(Path(parent))


def sync(path: Path) -> None:
    """Waits until a file's data, or a folder's names, are on the disk."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def exchange(folder: Path, target: Path, replace: bool, sort: Sort = BUNDLE) -> Path | None:
    """Puts `folder` at `target` in one step; returns where the folder that stood there lies now, if any.

    UsageError if something has appeared at `target` and may not be replaced.
    """
    for _ in range(_ATTEMPTS):
        try:
            # Succeeds where nothing, or an empty folder, is in the way.
            os.rename(folder, target)
            return None
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR):
                raise
        check_target(target, replace, sort)
        try:
            _swap(folder, target)
            return folder
        except FileNotFoundError:
            continue  # Another process took it away; the place is free again.
    raise UsageError(f"{target} keeps changing; let what else writes there end first")


def _swap(first: Path, second: Path) -> None:
    rename = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    names = os.fsencode(first), os.fsencode(second)
    if rename is not None and rename(_AT_FDCWD, names[0], _AT_FDCWD, names[1], _RENAME_EXCHANGE) == 0:
        return
    code = ctypes.get_errno() if rename is not None else errno.ENOSYS
    if code not in (errno.ENOSYS, errno.EINVAL):
        raise OSError(code, os.strerror(code), str(second))
    # No exchange on this file system: the place is empty for a moment, but never half-written.
    aside = first.with_name(first.name + "0")
    os.rename(second, aside)
    os.rename(first, second)
    os.rename(aside, first)


def _alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except (PermissionError, OverflowError):
        pass
    return True
