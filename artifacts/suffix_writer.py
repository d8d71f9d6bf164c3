"""Writes a corpus beside its place and puts it there in one step: documents of ids in, sorted suffixes added.

Knows nothing of text or tokenizers.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from types import TracebackType

import msgspec
import numpy as np

from tandem.artifacts import canonical, staging, suffix
from tandem.artifacts.suffix_sort import Progress, sort_suffixes
from tandem.errors import UsageError


class CorpusWriter:
    """Gathers documents; `publish` sorts and ends it. The same documents give the same bytes.

    UsageError if `target` exists and may not be replaced. Leaving the block without `publish` removes everything.
    """

    def __init__(self, target: Path, tokenizer: str, vocab_size: int, *, replace: bool = False) -> None:
        self.num_documents = self.num_tokens = 0
        self._tokenizer, self._vocab_size = tokenizer, vocab_size
        self._stage = staging.Stage(target, staging.CORPUS, replace=replace)
        self._digest = hashlib.sha256()

    def __enter__(self) -> CorpusWriter:
        self._stage.__enter__()
        self._file = open(self._folder / suffix.TOKENS, "xb")
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._file.close()
        self._stage.__exit__(kind, error, at)

    @property
    def _folder(self) -> Path:
        assert self._stage.folder is not None, "outside the with block, or published"
        return self._stage.folder

    def add(self, ids: np.ndarray) -> None:
        """One document's ids (int32 [n]) below the vocabulary's size; an empty one is left out."""
        if not len(ids):
            return
        assert ids.min() >= 0 and ids.max() < self._vocab_size, "ids of another vocabulary"
        if self.num_tokens + len(ids) >= suffix.MAX_TOKENS:
            raise UsageError(f"a corpus holds {suffix.MAX_TOKENS} tokens at most; make two of it")
        data = np.append(ids, suffix.SEPARATOR).astype("<i4").tobytes()
        self._file.write(data)
        self._digest.update(data)
        self.num_documents += 1
        self.num_tokens += len(ids) + 1

    def publish(self, progress: Progress) -> suffix.CorpusMeta:
        """Sorts, seals, syncs and renames; `progress` hears shares of that. UsageError if there is no document."""
        if not self.num_documents:
            raise UsageError("there is no text in these files; give some with words in them")
        self._file.close()
        tokens = suffix.ArrayRecord(count=self.num_tokens, sha256=self._digest.hexdigest())
        meta = suffix.CorpusMeta(
            tokenizer=self._tokenizer,
            vocab_size=self._vocab_size,
            documents=self.num_documents,
            tokens=tokens,
            suffixes=self._sort(progress),
            kind="corpus",
            format=1,
            order=8,
        )
        (self._folder / suffix.META).write_bytes(canonical.encode(msgspec.to_builtins(meta)))
        staging.settle(self._folder)
        suffix.read_meta(self._folder)  # nothing is published that would be refused
        self._stage.publish()
        return meta

    def _sort(self, progress: Progress) -> suffix.ArrayRecord:
        tokens = np.asarray(suffix.map_ids(self._folder, suffix.TOKENS, self.num_tokens))
        count, digest = 0, hashlib.sha256()
        with open(self._folder / suffix.SUFFIXES, "xb") as file:
            for places in sort_suffixes(tokens, self._vocab_size, progress):
                data = places.astype("<i4").tobytes()
                file.write(data)
                digest.update(data)
                count += len(places)
        return suffix.ArrayRecord(count=count, sha256=digest.hexdigest())
