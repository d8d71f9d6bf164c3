"""A corpus on disk: one compressed file of token ids, the tokenizer that made them, and a table of the sources.

Three files: `tokens.xz` (ids as uint16, training text first, then each domain's held-out text; a separator behind every
document), `corpus.json` and `tokenizer.json`.
"""

from __future__ import annotations

import hashlib
import json
import lzma
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from tandem.compile.train import chat, tokenizer
from tandem.compile.train.documents import CHAT, DOCS, DOMAINS, Collector, Document
from tandem.errors import CheckpointError

if TYPE_CHECKING:
    from tokenizers import Tokenizer

    from tandem.compile.train.packages import Package

TOKENS, FACTS, TOKENIZER = "tokens.xz", "corpus.json", "tokenizer.json"
# Ids are pairs of bytes, which the coder is told of by lp and pb.
_FILTERS = [{"id": lzma.FILTER_LZMA2, "preset": 9, "dict_size": 1 << 28, "lc": 0, "lp": 1, "pb": 1}]
Ids = np.ndarray[Any, np.dtype[np.uint16]]


@dataclass(frozen=True, slots=True)
class Corpus:
    """Token ids and what they are from; `facts` is the content of corpus.json."""

    train: Ids
    held_out: dict[str, Ids]
    facts: dict[str, Any]
    tokenizer_json: str


def read_corpus(folder: Path) -> Corpus:
    """CheckpointError if a file is missing, damaged or of another corpus."""
    for name in (TOKENS, FACTS, TOKENIZER):
        if not (folder / name).is_file():
            raise CheckpointError(f"{folder}: {name} is missing; make it with `python -m tandem.compile.train corpus`")
    facts = json.loads((folder / FACTS).read_text())
    try:
        content = lzma.decompress((folder / TOKENS).read_bytes())
    except lzma.LZMAError as error:
        raise CheckpointError(f"{folder / TOKENS}: damaged ({error}); copy it again") from error
    if hashlib.sha256(content).hexdigest() != facts["sha256"]:
        raise CheckpointError(f"{folder / TOKENS}: is not the one that {FACTS} describes; copy both again")
    ids = np.frombuffer(content, dtype="<u2")
    parts = np.split(ids, np.cumsum([facts["train_tokens"], *facts["held_out_tokens"].values()])[:-1])
    held_out = dict(zip(facts["held_out_tokens"], parts[1:], strict=True))
    return Corpus(parts[0], held_out, facts, (folder / TOKENIZER).read_text(encoding="utf-8"))


def build_corpus(
    packages: Iterable[Package],
    folder: Path,
    *,
    vocab_size: int,
    package_bytes: int,
    tokenizer_bytes: int,
    say: Callable[[str], None],
) -> dict[str, Any]:
    """Writes the three files and returns the facts. The same packages give the same files."""
    chosen = list(packages)
    documents = list(Collector(package_bytes).collect(chosen))
    say(f"{len(documents)} documents, {sum(len(d.text) for d in documents) / 1e6:.0f} MB")
    model = tokenizer.train_tokenizer(_sample(documents, tokenizer_bytes), vocab_size)
    documents += [chat.messages(d, e) for d in documents if d.domain != DOCS for e in chat.exchanges(d)]
    encoded = list(_encode(model, documents))
    say(f"{sum(map(len, encoded)) / 1e6:.1f} million tokens of {model.get_vocab_size()}")
    facts, content = _arrange(documents, encoded)
    facts |= {"vocab_size": model.get_vocab_size(), "sources": _sources(chosen, documents)}
    folder.mkdir(parents=True, exist_ok=True)
    model.encode_special_tokens = False
    (folder / TOKENIZER).write_text(model.to_str(), encoding="utf-8")
    (folder / TOKENS).write_bytes(lzma.compress(content, lzma.FORMAT_XZ, filters=_FILTERS))
    (folder / FACTS).write_text(json.dumps(facts, indent=1) + "\n")
    return facts


def _sample(documents: Sequence[Document], max_bytes: int) -> Iterator[str]:
    """Training documents of an even spread over all."""
    texts = [document.text for document in documents if not document.held_out]
    step = max(1, -(-sum(map(len, texts)) // max_bytes))
    yield from texts[::step]


def _encode(model: Tokenizer, documents: Sequence[Document]) -> Iterator[Ids]:
    for start in range(0, len(documents), 256):
        batch = documents[start : start + 256]
        plain = iter(tokenizer.encode(model, [d.text for d in batch if d.domain != CHAT]))
        for document in batch:
            if document.domain == CHAT:
                question, answer = document.text.split("\0")
                ids = tokenizer.encode_turns(model, [("user", question), ("assistant", answer)])
            else:
                ids = next(plain)
            yield np.array([*ids, tokenizer.SEPARATOR_ID], dtype="<u2")


def _arrange(documents: Sequence[Document], encoded: Sequence[Ids]) -> tuple[dict[str, Any], bytes]:
    """Counts by domain and the ids in file order: training documents shuffled, then held-out ones by domain."""
    train = [i for i, document in enumerate(documents) if not document.held_out]
    order = [train[i] for i in np.random.default_rng(0).permutation(len(train))]
    counts = {domain: sum(len(encoded[i]) for i in train if documents[i].domain == domain) for domain in DOMAINS}
    held_tokens, held_bytes = {}, {}
    for domain in DOMAINS:
        held = [i for i, document in enumerate(documents) if document.held_out and document.domain == domain]
        held_tokens[domain] = sum(len(encoded[i]) for i in held)
        held_bytes[domain] = sum(len(documents[i].text.encode()) for i in held)
        order += held
    content = b"".join(encoded[i].tobytes() for i in order)
    facts = {
        "train_tokens": sum(counts.values()),
        "train_tokens_by_domain": counts,
        "held_out_tokens": held_tokens,
        "held_out_bytes": held_bytes,
        "sha256": hashlib.sha256(content).hexdigest(),
    }
    return facts, content


def _sources(packages: Sequence[Package], documents: Sequence[Document]) -> list[dict[str, Any]]:
    """What was taken of each package, made chat left out."""
    taken = [document for document in documents if document.domain != CHAT]
    files = Counter(document.package for document in taken)
    size: Counter[str] = Counter()
    for document in taken:
        size[document.package] += len(document.text.encode())
    versions: dict[str, tuple[str, str]] = {}
    for package in packages:
        versions.setdefault(package.name, (package.version, package.licence))
    return [
        {"name": name, "version": version, "licence": licence, "files": files[name], "bytes": size[name]}
        for name, (version, licence) in sorted(versions.items(), key=lambda item: item[0].lower())
        if files[name]
    ]
