"""A folder beside the place of a bundle in which it arrives file by file, over several runs if need be.

Knows nothing of networks. The bundle appears at its place whole and checked, by one rename, or not at all.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import stat
from pathlib import Path
from types import TracebackType

from tandem.artifacts import digest, folder, layout, staging
from tandem.artifacts.header import decode
from tandem.artifacts.manifest import Manifest
from tandem.errors import UsageError


class Landing:
    """Gathers the files of the bundle that `data`, its manifest's bytes, describes; `publish` ends it.

    Leaving the block earlier keeps what came: the next run for the same bundle and place goes on there. UsageError
    if `target` exists and may not be replaced, or while another run is at it.
    """

    def __init__(self, target: Path, data: bytes, *, replace: bool = False) -> None:
        # The last name stays as it is, so that a link is refused, not followed.
        self.target = target.parent.resolve() / target.name if target.name not in ("", "..") else target.resolve()
        self.replace = replace
        self.manifest: Manifest = decode(data)
        self._data = data
        self._folder = self.target.with_name(f"{_prefix(self.target)}{digest.sha256_bytes(data)[:16]}")
        self._lock = -1
        self._made: list[Path] = []

    def __enter__(self) -> Landing:
        staging.check_target(self.target, self.replace)
        try:
            self._made = [parent for parent in self.target.parents if not parent.exists()]
            self.target.parent.mkdir(parents=True, exist_ok=True)
            self._folder.mkdir(mode=0o700, exist_ok=True)
        except OSError as error:
            staging.drop(self._made)
            raise UsageError(
                f"{self.target}: no folder can be made there ({error.strerror}); choose another"
            ) from error
        self._lock = _own(self._folder)
        self._sweep()
        self._prune()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        with contextlib.suppress(OSError):
            self._folder.rmdir()  # nothing came
        staging.drop(self._made)
        os.close(self._lock)

    def path(self, name: str) -> Path:
        """Where the file `name` of the manifest arrives, its folder made."""
        path = self._folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        return path

    def missing(self) -> int:
        """Bytes that have yet to come."""
        there = sum(path.lstat().st_size for path in self._folder.rglob("*") if not path.is_dir())
        return max(0, sum(file.size for file in self.manifest.files) - there)

    def publish(self, signature: bytes | None) -> None:
        """Adds manifest and signature, syncs and renames. The caller has checked every file's digest.

        UsageError if the target has appeared meanwhile and may not be replaced.
        """
        self.path(layout.MANIFEST).write_bytes(self._data)
        if signature is not None:
            self.path(layout.SIGNATURE).write_bytes(signature)
        staging.settle(self._folder)
        folder.check_listing(self._folder, {file.path: file.size for file in self.manifest.files})
        replaced = staging.exchange(self._folder, self.target, self.replace)
        staging.sync(self.target.parent)
        if replaced is not None:
            shutil.rmtree(replaced, ignore_errors=True)

    def _sweep(self) -> None:
        """Removes what earlier runs for this place left of other bundles, unless one is still at it."""
        pattern = re.compile(re.escape(_prefix(self.target)) + "[0-9a-f]{16}")
        for other in self.target.parent.iterdir():
            if other != self._folder and pattern.fullmatch(other.name) and not other.is_symlink():
                with contextlib.suppress(OSError):
                    lock = staging.lock(other)
                    shutil.rmtree(other, ignore_errors=True)
                    os.close(lock)

    def _prune(self) -> None:
        """Removes what is not a listed file: a run that died late leaves a manifest, or the bundle it replaced."""
        files = {file.path: file.size for file in self.manifest.files}
        folders = {parent.as_posix() for name in files for parent in Path(name).parents}
        for parent, inner, names in os.walk(self._folder):
            for path in (Path(parent, name) for name in (*inner, *names)):
                name, facts = path.relative_to(self._folder).as_posix(), path.lstat()
                if stat.S_ISREG(facts.st_mode) and name in files and facts.st_size <= files[name]:
                    path.chmod(0o600)
                elif not stat.S_ISDIR(facts.st_mode):
                    path.unlink()
                elif name not in folders:
                    shutil.rmtree(path)
            inner[:] = [name for name in inner if Path(parent, name).is_dir() and not Path(parent, name).is_symlink()]


def _prefix(target: Path) -> str:
    return f".{target.name}.pull-"


def _own(path: Path) -> int:
    """A lock on the folder `path`. UsageError if it is not ours alone, or in use."""
    facts = path.lstat()
    if not stat.S_ISDIR(facts.st_mode) or facts.st_uid != os.geteuid():
        raise UsageError(f"{path}: not a folder of yours, though pulls use this name; remove it")
    try:
        lock = staging.lock(path)
    except OSError:
        raise UsageError(f"{path}: another pull into it is running; let it end first") from None
    # Who held the lock before may have put the folder to its place meanwhile.
    if not path.exists() or os.fstat(lock).st_ino != path.lstat().st_ino:
        os.close(lock)
        raise UsageError(f"{path}: another pull into it has just ended; look at its result first")
    return lock
