"""A corpus on the shelf: opened at once, read whole in the background.

Knows nothing of how it is searched.
"""

from __future__ import annotations

import logging
from pathlib import Path
from threading import Thread

from tandem.artifacts import suffix
from tandem.artifacts.suffix import SuffixTable
from tandem.errors import BundleError
from tandem.runtime.drafters.rates import CORPUS

log = logging.getLogger("tandem.runtime")


class Corpus:
    """The corpus in the folder `path`; `table` is None once a byte of it turned out to be wrong.

    A start does not wait until hundreds of megabytes are read: a wrong byte makes a guess wrong, never a text. Reading
    them in the background brings them into memory, too, before a round has to wait for them. Errors as
    `suffix.open_corpus`.
    """

    source = CORPUS

    def __init__(self, path: Path, tokenizer: str) -> None:
        self.path = path
        self.table: SuffixTable | None = suffix.open_corpus(path, tokenizer)
        log.info("corpus %s: %d tokens", path, len(self.table.suffixes))

    def check(self) -> Thread:
        """Starts to read every byte of it."""
        thread = Thread(target=self._check, name="tandem-corpus", daemon=True)
        thread.start()
        return thread

    def _check(self) -> None:
        try:
            suffix.verify(self.path)
            self.table = self.table and self.table.with_heads()
        except (BundleError, OSError) as error:
            self.table = None
            log.warning("corpus %s is not looked up in any more: %s", self.path, error)
