"""A file that grows until it is whole, over several runs if need be; its bytes are hashed as they come.

Knows nothing of where they come from.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from types import TracebackType

from tandem.artifacts.digest import Progress
from tandem.errors import TransferError

_CHUNK = 4 << 20


class Part:
    """The file at `path`, opened behind what an earlier run left in it. `count` is its size in bytes.

    `progress` hears of every byte, those of earlier runs too; of negative counts where bytes are thrown away.
    """

    def __init__(self, path: Path, progress: Progress) -> None:
        self.path = path
        self.count = 0
        self._progress = progress
        self._digest = hashlib.sha256()
        self._file = open(path, "a+b", buffering=0)  # noqa: SIM115 - closed with this object
        self._file.seek(0)
        buffer = memoryview(bytearray(_CHUNK))
        while size := self._file.readinto(buffer):
            self._take(buffer[:size])

    def __enter__(self) -> Part:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self._file.close()

    @property
    def sha256(self) -> str:
        """Digest of what is there, 64 hex digits."""
        return self._digest.hexdigest()

    def write(self, data: bytes) -> None:
        """Appends. TransferError where the disk is full or fails."""
        try:
            view = memoryview(data)
            while view:
                size = self._file.write(view)
                self._take(view[:size])
                view = view[size:]
        except OSError as error:
            raise TransferError(
                f"{self.path}: {error.strerror}; what came is kept, run the same command again to go on"
            ) from error

    def restart(self) -> None:
        """Throws away what is there."""
        self._file.truncate(0)
        self._progress(-self.count)
        self.count, self._digest = 0, hashlib.sha256()

    def _take(self, data: memoryview) -> None:
        self._digest.update(data)
        self.count += len(data)
        self._progress(len(data))
