"""Corpora for tests: documents of ids written where a test wants them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np

from tandem.artifacts.suffix import CorpusMeta
from tandem.artifacts.suffix_writer import CorpusWriter

TOKENIZER = "ab" * 32


def write(
    target: Path,
    documents: Iterable[Sequence[int]],
    *,
    vocab_size: int = 50,
    tokenizer: str = TOKENIZER,
    replace: bool = False,
) -> CorpusMeta:
    with CorpusWriter(target, tokenizer, vocab_size, replace=replace) as writer:
        for document in documents:
            writer.add(np.array(list(document), np.int32))
        return writer.publish(lambda share: None)
