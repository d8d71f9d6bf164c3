"""The folder of a suffix store: who may write it, of which tokenizer it is, and its log, whole after any crash.

Three files, for their owner alone: `meta.json`, `tokens.bin` (see `suffix_log`), and while an old half is dropped
`tokens.new`. Knows nothing of when anything is written.
"""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import msgspec
import numpy as np

from tandem.artifacts import canonical, folder, staging, suffix
from tandem.artifacts.record import Capacity, Digest, Record
from tandem.errors import BundleCorrupt, BundleError, BundleMismatch, UsageError

META, LOG, NEW = "meta.json", "tokens.bin", "tokens.new"
REMEDY = "name another folder, or take this one away if it is nothing else"
_META_NEW = "meta.new"
_PLAIN = os.O_CLOEXEC | os.O_NOFOLLOW


class StoreMeta(Record, frozen=True):
    """`tokenizer` is the sha256 of the tokenizer.json that the ids are of, as bundles list it."""

    tokenizer: Digest
    vocab_size: Capacity
    format: Literal[1]
    kind: Literal["suffix-store"]


class StoreFolder:
    """The store at `path`, made if it is not there; locked against other writers unless it is `readonly`.

    UsageError if the folder is something else or another process writes it, BundleMismatch if it is of another
    tokenizer, BundleCorrupt if nothing says of which it is. Everything else raises OSError and leaves the log as it
    was.
    """

    def __init__(self, path: Path, tokenizer: str, vocab_size: int, *, readonly: bool = False) -> None:
        self.path, self.readonly = path, readonly
        self._lock = self._log = -1
        try:
            if not readonly:
                self._claim(StoreMeta(tokenizer=tokenizer, vocab_size=vocab_size, format=1, kind="suffix-store"))
            self._check(tokenizer, vocab_size)
            flags = os.O_RDONLY if readonly else os.O_RDWR | os.O_CREAT | os.O_APPEND
            self._log = os.open(path / LOG, flags | _PLAIN, 0o600)
            if not stat.S_ISREG(os.fstat(self._log).st_mode):
                raise BundleCorrupt(f"{path / LOG}: not a regular file; {REMEDY}")
        except BaseException as error:
            self.close()
            if isinstance(error, OSError):
                raise BundleError(f"{error.filename or path}: {error.strerror}; {REMEDY}") from error
            raise

    @property
    def torn(self) -> int:
        """Bytes behind the last whole number."""
        return os.fstat(self._log).st_size % 4

    def read(self) -> memoryview:
        """All whole numbers of the log, int32, mapped; what is appended later is not in it."""
        return suffix.map_open(self._log, os.fstat(self._log).st_size // 4)

    def append(self, data: bytes) -> None:
        """Adds to the log and waits for the disk; where that fails the log is as long as before."""
        size = os.fstat(self._log).st_size
        try:
            rest = memoryview(data)
            while rest:
                rest = rest[os.write(self._log, rest) :]
            os.fdatasync(self._log)
        except OSError:
            with contextlib.suppress(OSError):
                os.ftruncate(self._log, size)
            raise

    def truncate(self, size: int) -> None:
        """Keeps the first `size` bytes of the log."""
        os.ftruncate(self._log, size)
        os.fsync(self._log)

    def rewrite(self, parts: Sequence[np.ndarray]) -> None:
        """Puts a log of these int32 arrays in the place of the old one in one step; maps of that stay whole."""
        new = os.open(self.path / NEW, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND | _PLAIN, 0o600)
        try:
            for part in parts:
                rest = np.ascontiguousarray(part, "<i4").view(np.uint8).data
                while rest:
                    rest = rest[os.write(new, rest) :]
            os.fsync(new)
            os.rename(self.path / NEW, self.path / LOG)
        except BaseException:
            os.close(new)
            with contextlib.suppress(OSError):
                os.unlink(self.path / NEW)
            raise
        os.close(self._log)
        self._log = new
        staging.sync(self.path)

    def close(self) -> None:
        """Lets others write. May be called twice."""
        for descriptor in (self._log, self._lock):
            if descriptor >= 0:
                os.close(descriptor)
        self._log = self._lock = -1

    def _claim(self, meta: StoreMeta) -> None:
        """Makes the folder if need be, for its owner alone, and locks it."""
        there = set(os.listdir(self.path)) if self.path.is_dir() else set()
        if META not in there and there - {_META_NEW}:  # a crash may have left that
            raise UsageError(f"{self.path} holds other things than a suffix store; name another folder")
        self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
        try:
            self._lock = staging.lock(self.path)
        except BlockingIOError:
            raise UsageError(
                f"{self.path}: another process keeps this suffix store; name another folder, or give"
                " --suffix-store-readonly"
            ) from None
        self.path.chmod(0o700)
        for left in (NEW, _META_NEW):
            (self.path / left).unlink(missing_ok=True)
        if not os.path.lexists(self.path / META):
            fresh = self.path / _META_NEW
            fresh.write_bytes(canonical.encode(msgspec.to_builtins(meta)))
            fresh.chmod(0o600)
            staging.sync(fresh)
            fresh.rename(self.path / META)
            staging.sync(self.path)

    def _check(self, tokenizer: str, vocab_size: int) -> None:
        if not self.path.is_dir():
            raise BundleError(f"{self.path}: no suffix store is there; one is made without --suffix-store-readonly")
        where = self.path / META
        try:
            data = folder.read(self.path, META, suffix.MAX_META_BYTES)
            meta = msgspec.convert(canonical.decode(data, META, REMEDY), StoreMeta)
        except (BundleCorrupt, msgspec.ValidationError) as error:
            raise BundleCorrupt(f"{where}: nothing says of which tokenizer this store is ({error}); {REMEDY}") from None
        if (meta.tokenizer, meta.vocab_size) != (tokenizer, vocab_size):
            raise BundleMismatch(
                f"{self.path}: a suffix store of the tokenizer {meta.tokenizer[:16]}.. with {meta.vocab_size} ids and "
                f"the bundle's is {tokenizer[:16]}.. with {vocab_size}; name another folder"
            )
