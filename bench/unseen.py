"""Text that the demo hybrid was not trained on, as token ids: for any model a prompt like others, for that one unseen.

Knows nothing of what is measured on it.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from answer import CommandError

if TYPE_CHECKING:
    from tokenizers import Tokenizer

Ids = list[int]


def python_files() -> list[str]:
    """Files of this Python's own library, of those that every corpus of `tandem.compile.train` leaves out."""
    from tandem.compile.train.documents import STDLIB, clean, is_code, is_held_out
    from tandem.compile.train.packages import CODE, standard_library

    library = standard_library()
    kept = (
        clean(content)
        for path, content in library.files()
        if path.endswith(CODE) and is_held_out(STDLIB, library.name, path)
    )
    return [text for text in kept if is_code(text)]


def library(tokenizer: Tokenizer) -> list[Ids]:
    """`python_files`, each as ids."""
    return [tokenizer.encode(text, add_special_tokens=False).ids for text in python_files()]


def domains(tokenizer: Tokenizer, corpus: Path | None) -> dict[str, Ids]:
    """Held-out text by domain: a corpus' own parts, or `library` where there is none. CommandError if the corpus has
    another tokenizer."""
    if corpus is None:
        return {"stdlib": [token for ids in library(tokenizer) for token in ids]}
    from tokenizers import Tokenizer as Words

    from tandem.compile.train.corpus import read_corpus

    found = read_corpus(corpus)
    if Words.from_str(found.tokenizer_json).get_vocab() != tokenizer.get_vocab():
        raise CommandError(f"{corpus} has another tokenizer than the bundle; give the corpus that it was trained on")
    return {domain: ids.tolist() for domain, ids in found.held_out.items()}


def windows(ids: Ids, length: int, count: int) -> list[Ids]:
    """Up to `count` pieces of `length` tokens, evenly spread over `ids` and none over another; one, if ids are few."""
    fitting = max(1, len(ids) // length)
    count = min(count, fitting)
    return [ids[start : start + length] for start in (i * fitting // count * length for i in range(count))]
