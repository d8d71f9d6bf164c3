"""Texts served before, kept as token ids in a folder and looked up in: the suffix store.

One thread of its own touches the disk, sorts and recovers; the engine's only puts documents into a queue. Only ids and
their checksums lie on the disk. The sorted suffixes are in a file without a name: after a crash there is none that
could be trusted wrongly, they are made anew.
"""

from __future__ import annotations

import logging
import queue
import tempfile
from array import array
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from threading import Event, Thread

import numpy as np

from tandem.artifacts import suffix
from tandem.artifacts.suffix import SuffixTable
from tandem.artifacts.suffix_folder import StoreFolder
from tandem.artifacts.suffix_log import newer_half, sealed, sound_spans, unseen
from tandem.artifacts.suffix_sort import ORDER, sort_suffixes
from tandem.runtime.drafters.rates import STORE
from tandem.runtime.heap import trim

log = logging.getLogger("tandem.runtime")

FRESH_TOKENS = 100_000
"""New tokens after which the suffixes are sorted again."""
QUEUE = 1024  # documents that may wait for the disk
BUCKET = 500_000  # places sorted at a time: the interpreter is not held for long
RECENT = 16  # documents that a new one is compared with
CLOSING_SECONDS = 10.0


class SuffixStore:
    """The store in `folder`, which is open; `table` is None until its texts are sorted.

    A log over `max_bytes` loses its older half. Errors of the disk cost the store tokens, never a request: they are
    told in one line, and what is there stays sound.
    """

    source = STORE

    def __init__(
        self, folder: StoreFolder, vocab_size: int, *, max_bytes: int, fresh_tokens: int = FRESH_TOKENS
    ) -> None:
        self.table: SuffixTable | None = None
        self._folder, self._vocab_size = folder, vocab_size
        self._max_bytes, self._fresh_tokens = max_bytes, fresh_tokens
        self._queue: queue.Queue[array[int] | None] = queue.Queue(QUEUE)
        self._recent: deque[array[int]] = deque(maxlen=RECENT)
        self._fresh = 0  # tokens that are not sorted
        self._closing = Event()
        self._complaining = self._slow = False
        self._thread = Thread(target=self._serve, name="tandem-store", daemon=True)
        self._thread.start()

    def record(self, ids: array[int]) -> None:
        """Takes a document (int32). Never waits: where the disk is slower than the texts, it is left out."""
        if self._folder.readonly or not ids:
            return
        try:
            self._queue.put_nowait(ids)
        except queue.Full:
            if not self._slow:
                log.warning("suffix store %s: the disk is too slow, some texts are not kept", self._folder.path)
            self._slow = True

    def close(self) -> None:
        """Writes what was recorded and gives the folder back."""
        self._closing.set()
        with suppress(queue.Full):
            self._queue.put(None, timeout=CLOSING_SECONDS)
        self._thread.join(CLOSING_SECONDS)

    def _serve(self) -> None:
        try:
            self._attempt(self._recover)
            self._attempt(self._sort)
            while (ids := self._queue.get()) is not None:
                self._attempt(self._append, ids)
                if self._fresh >= self._fresh_tokens and not self._closing.is_set():
                    self._attempt(self._sort)
        finally:
            self._folder.close()

    def _attempt(self, task: Callable[..., None], *arguments: array[int]) -> None:
        try:
            task(*arguments)
            self._complaining = False
        except Exception as error:
            self._complain(str(error))

    def _complain(self, reason: str) -> None:
        """Once until something goes well again."""
        if not self._complaining:
            log.warning("suffix store %s: new texts are not kept: %s", self._folder.path, reason)
        self._complaining = True

    def _recover(self) -> None:
        """Drops whatever a crash or a damaged disk left that is no whole document."""
        if self._folder.readonly:
            return
        found = np.asarray(self._folder.read())
        spans = sound_spans(found)
        kept, torn = sum(end - start for start, end in spans), self._folder.torn
        if kept == len(found) and not torn:
            return
        log.warning(
            "suffix store %s: %d of %d bytes are of no whole document and are dropped",
            self._folder.path,
            4 * (len(found) - kept) + torn,
            4 * len(found) + torn,
        )
        if spans in ([], [(0, kept)]):
            self._folder.truncate(4 * kept)
        else:
            self._folder.rewrite([found[start:end] for start, end in spans])

    def _append(self, ids: array[int]) -> None:
        if fresh := unseen(ids, self._recent, ORDER):
            self._folder.append(sealed(fresh))
            self._fresh += len(fresh) + 1
        self._recent.append(ids)

    def _sort(self) -> None:
        """Sorts the log as it is now and swaps the table; a log that is too long loses its older half before."""
        tokens = self._folder.read()
        if 4 * len(tokens) > self._max_bytes and not self._folder.readonly:
            found = np.asarray(tokens)
            self._folder.rewrite([found[newer_half(found) :]])
            tokens = self._folder.read()
        # Where nothing could be recovered, or another process writes just now, the end may be unsound.
        first = next(iter(sound_spans(np.asarray(tokens))), (0, 0))
        tokens = tokens[: first[1] if first[0] == 0 else 0]
        self._fresh = 0  # also if it fails: it is tried again when there is more
        count = 0
        with tempfile.TemporaryFile(dir=None if self._folder.readonly else self._folder.path) as file:
            for places in sort_suffixes(np.asarray(tokens), self._vocab_size, bucket=BUCKET):
                if self._closing.is_set():
                    return
                file.write(places.astype("<i4").tobytes())
                count += len(places)
            file.flush()
            suffixes = suffix.map_open(file.fileno(), count)
        trim()
        self.table = SuffixTable(tokens, suffixes).with_heads() if count else None
