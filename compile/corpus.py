"""From files of text to a mapped corpus that drafts are looked up in. Needs a tokenizer, and no model.

Knows nothing of how the corpus is searched.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from tandem.artifacts import layout
from tandem.artifacts.digest import sha256_bytes
from tandem.artifacts.suffix import CorpusMeta
from tandem.artifacts.suffix_writer import CorpusWriter
from tandem.compile.checkpoints.tokenizer import load_tokenizer
from tandem.compile.progress import Progress
from tandem.compile.texts import Piece, gather, pieces
from tandem.compile.tokenizer import quick_text
from tandem.errors import UsageError

BATCH = 1 << 21  # characters tokenized together
READ, SORTED = 60.0, 40.0  # shares of the bar


def build_corpus(
    files: Sequence[Path], tokenizer: Path, target: Path, *, replace: bool = False, progress: Progress
) -> CorpusMeta:
    """Writes the documents of `files` and folders as a corpus at `target`, in ids of `tokenizer`.

    `tokenizer` is a bundle, a folder with a tokenizer.json, or that file. UsageError for files or a tokenizer that
    cannot be read, CheckpointError for one that is none.
    """
    text = _tokenizer_text(tokenizer)
    model = load_tokenizer(text, str(tokenizer))
    vocab_size = max(model.get_vocab().values(), default=0) + 1
    found = gather(files)
    total = max(1, sum(path.stat().st_size for path in found))
    with CorpusWriter(target, sha256_bytes(text.encode()), vocab_size, replace=replace) as writer:
        progress.stage("reading", READ)
        document: list[np.ndarray] = []
        for batch in _batches(pieces(found)):
            encoded = model.encode_batch_fast([piece.text for piece in batch], add_special_tokens=False)
            for piece, encoding in zip(batch, encoded, strict=True):
                document.append(np.array(encoding.ids, np.int32))
                if piece.last:
                    writer.add(np.concatenate(document))
                    document = []
            progress.advance(READ * sum(piece.read for piece in batch) / total, f"{writer.num_tokens:,} tokens")
        progress.stage("sorting", SORTED)
        return writer.publish(lambda share: progress.advance(SORTED * share))


def _tokenizer_text(path: Path) -> str:
    """A tokenizer.json as bundles hold it, so that its digest is that of a bundle's."""
    file = path / layout.TOKENIZER if path.is_dir() else path
    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(
            f"--tokenizer {path}: {file} cannot be read ({error}); give a bundle, or a tokenizer.json or its folder"
        ) from None
    if path.is_dir() and (path / layout.MANIFEST).is_file():
        return text
    return quick_text(text, str(file))


def _batches(found: Iterator[Piece]) -> Iterator[list[Piece]]:
    batch: list[Piece] = []
    size = 0
    for piece in found:
        batch.append(piece)
        size += len(piece.text)
        if size >= BATCH:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch
