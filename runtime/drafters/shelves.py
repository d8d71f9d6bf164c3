"""Opens what the lookup searches beside the request: corpora, and a store of texts served before.

Knows nothing of command lines.
"""

from __future__ import annotations

from typing import Any

from tandem.artifacts.suffix_folder import StoreFolder
from tandem.runtime.drafters.corpus import Corpus
from tandem.runtime.drafters.shelf_options import ShelfOptions, Shelves
from tandem.runtime.drafters.store import SuffixStore


def open_shelves(options: ShelfOptions, tokenizer: str, vocab_size: int) -> Shelves:
    """Opens all that is asked for. Errors as `suffix.open_corpus` and `StoreFolder`."""
    corpora = [Corpus(path, tokenizer) for path in options.corpus]
    store = None
    if options.store is not None:
        folder = StoreFolder(options.store, tokenizer, vocab_size, readonly=options.store_readonly)
        store = SuffixStore(folder, vocab_size, max_bytes=options.store_mib << 20)
    for corpus in corpora:
        corpus.check()
    lookup: dict[str, Any] = {"shelves": [*corpora, *([store] if store else [])], "vocab_size": vocab_size}
    if store is None:
        return Shelves(lookup)
    if not options.store_readonly:
        lookup |= {"record": store.record, "with_prompt": options.store_scope == "all"}
    return Shelves(lookup, (store.close,))
