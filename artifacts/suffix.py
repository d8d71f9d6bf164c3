"""Texts as token ids with an array of their suffixes, mapped from a folder: what lookups search without reading it.

Three files: `meta.json`, ids as int32 and places as int32, both little endian; `docs/drafting.md` draws them. A wrong
byte in the last two can only make a guess worse, since every guess is verified, so opening reads the first and holds
the sizes of the others against it; `verify` reads everything. Knows nothing of drafts.
"""

from __future__ import annotations

import mmap
import os
import stat
import sys
from array import array
from bisect import bisect_left, bisect_right
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import msgspec
import numpy as np

from tandem.artifacts import canonical, digest, folder
from tandem.artifacts.layout import MANIFEST
from tandem.artifacts.record import Capacity, Count, Digest, Record
from tandem.errors import BundleCorrupt, BundleError, BundleMismatch

FORMAT = 1
META, TOKENS, SUFFIXES = "meta.json", "tokens.bin", "suffixes.bin"
SEPARATOR = 1 << 30
"""Ends a document; ids are below it."""
STRIDE = 4096
HEAD, HEAD_BITS = 3, 21
NO_ID = (1 << HEAD_BITS) - 1
"""Stands in heads for all numbers that they cannot hold, separators among them."""
MAX_META_BYTES = 1 << 16
MAX_TOKENS = 2**31 - 1
REMEDY = "build the corpus again with tandem-compile corpus"


class ArrayRecord(Record, frozen=True):
    """A file of `count` int32 numbers."""

    count: Count
    sha256: Digest


class CorpusMeta(Record, frozen=True):
    """`tokenizer` is the sha256 of the tokenizer.json that the ids are of, as bundles list it."""

    tokenizer: Digest
    vocab_size: Capacity
    documents: Count
    tokens: ArrayRecord
    suffixes: ArrayRecord
    kind: Literal["corpus"]
    format: Literal[1]
    order: Literal[8]


@dataclass(frozen=True, slots=True)
class SuffixTable:
    """A text that ends with a separator and its places that begin with an id, in the order of the ORDER tokens there.

    Both are memoryviews of int32. A place whose suffix is not what it should be misleads a search and nothing else.
    `heads` are the first HEAD tokens of every STRIDE-th place as one number each, for a search to begin among; without
    them (see `with_heads`) it takes twice as long.
    """

    tokens: memoryview
    suffixes: memoryview
    heads: array[int] = field(default_factory=lambda: array("q"))

    def with_heads(self) -> SuffixTable:
        """The same with its heads, which takes a page of either file for each."""
        tokens = np.asarray(self.tokens)
        places = np.asarray(self.suffixes)[::STRIDE].astype(np.int64)
        heads = np.zeros(len(places), np.int64)
        for i in range(HEAD):
            ids = tokens[np.clip(places + i, 0, len(tokens) - 1)].view(np.uint32) if len(places) else heads
            heads = heads << HEAD_BITS | np.minimum(ids, NO_ID)
        return SuffixTable(self.tokens, self.suffixes, array("q", heads.tobytes()))

    def find(self, ids: list[int]) -> tuple[int, int]:
        """The range of `suffixes` whose places begin with these 1 to ORDER ids; an empty one if none does."""
        tokens, suffixes, n = self.tokens, self.suffixes, len(ids)

        def text(place: int) -> list[int]:
            return tokens[place : place + n].tolist()

        size = len(suffixes)
        low = bisect_left(suffixes, ids, *self._around(ids), key=text)
        if low == size or text(suffixes[low]) != ids:
            return low, low
        step = 1  # most ranges are short, so their end is sought from their beginning
        while low + step < size and text(suffixes[low + step]) == ids:
            step *= 2
        return low, bisect_right(suffixes, ids, low + step // 2, min(low + step, size), key=text)

    def _around(self, ids: list[int]) -> tuple[int, int]:
        """Where in `suffixes` the first place that begins with `ids` can be."""
        size, heads = len(self.suffixes), self.heads
        if not heads or max(ids) >= NO_ID:
            return 0, size
        first = 0
        for i in range(HEAD):
            first = first << HEAD_BITS | (ids[i] if i < len(ids) else 0)
        at = bisect_left(heads, first)
        if len(ids) < HEAD:
            return max(0, at - 1) * STRIDE, min(at * STRIDE + 1, size)
        behind = bisect_right(heads, first, at)
        return max(0, at - 1) * STRIDE, min(behind * STRIDE + 1, size)


def open_corpus(path: Path, tokenizer: str) -> SuffixTable:
    """The corpus in the folder `path`, mapped.

    BundleError if there is none, BundleCorrupt if it is damaged, BundleMismatch if it is of another format or of
    another tokenizer than the one with the sha256 `tokenizer`.
    """
    meta = read_meta(path)
    if meta.tokenizer != tokenizer:
        raise BundleMismatch(
            f"{path}: a corpus of the tokenizer {meta.tokenizer[:16]}.. and the bundle's is {tokenizer[:16]}..; "
            "build it again with tandem-compile corpus --tokenizer BUNDLE"
        )
    tokens, suffixes = map_ids(path, TOKENS, meta.tokens.count), map_ids(path, SUFFIXES, meta.suffixes.count)
    return SuffixTable(tokens, suffixes)


def is_corpus(path: Path) -> bool:
    """Whether the folder `path` was meant as a corpus, damaged or not, and not as a bundle."""
    return not (path / MANIFEST).exists() and any((path / name).exists() for name in (META, TOKENS, SUFFIXES))


def read_meta(path: Path) -> CorpusMeta:
    """What `meta.json` says, and that the folder holds it and files of the sizes it names. Errors as `open_corpus`."""
    if not path.is_dir():
        what = "a file, not a folder" if path.exists() else "nothing there"
        raise BundleError(f"{path}: {what}; a corpus is the folder that tandem-compile corpus wrote")
    if (size := _size(path / META)) > MAX_META_BYTES:
        raise BundleCorrupt(f"{path / META}: over {MAX_META_BYTES} bytes; {REMEDY}")
    value = canonical.decode(folder.read(path, META, MAX_META_BYTES), str(path / META), REMEDY)
    found = value if isinstance(value, dict) else {}
    if isinstance(kind := found.get("kind"), str) and kind != "corpus":
        raise BundleMismatch(f"{path}: a {kind}, not a corpus, which tandem-compile corpus makes; name another folder")
    if type(number := found.get("format")) is int and number != FORMAT:
        raise BundleMismatch(f"{path / META}: format {FORMAT} wanted, {number} found; {REMEDY}")
    try:
        meta = msgspec.convert(value, CorpusMeta)
    except msgspec.ValidationError as error:
        raise BundleCorrupt(f"{path / META}: {error}; {REMEDY}") from None
    for name in sorted(os.listdir(path)):
        if name not in (META, TOKENS, SUFFIXES):
            raise BundleCorrupt(f"{path / name}: no file of a corpus; take it away")
    for name, record in ((TOKENS, meta.tokens), (SUFFIXES, meta.suffixes)):
        wanted, size = 4 * record.count, _size(path / name)
        if size != wanted:
            raise BundleCorrupt(f"{path / name}: {wanted} bytes wanted, {size} found; {REMEDY}")
    return meta


def verify(path: Path, progress: digest.Progress | None = None) -> CorpusMeta:
    """Reads every byte. BundleCorrupt, which names the file, for any that is not as it was written."""
    meta = read_meta(path)
    for name, record in ((TOKENS, meta.tokens), (SUFFIXES, meta.suffixes)):
        found = digest.sha256_file(path / name, progress)
        if found != record.sha256:
            raise BundleCorrupt(f"{path / name}: sha256 {record.sha256} wanted, {found} found; {REMEDY}")
    return meta


def map_ids(path: Path, name: str, count: int) -> memoryview:
    """The first `count` int32 numbers of a file, mapped read-only. BundleCorrupt if there are fewer."""
    descriptor = os.open(path / name, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        if os.fstat(descriptor).st_size < 4 * count:
            raise BundleCorrupt(f"{path / name}: shorter than {4 * count} bytes; {REMEDY}")
        return map_open(descriptor, count)
    finally:
        os.close(descriptor)


def map_open(descriptor: int, count: int) -> memoryview:
    """The same of an open file that has them."""
    if sys.byteorder != "little":
        raise BundleMismatch("suffixes are looked up on little-endian machines only; leave them out here")
    if not count:
        return memoryview(b"").cast("i")
    return memoryview(mmap.mmap(descriptor, 4 * count, mmap.MAP_SHARED, mmap.PROT_READ)).cast("i")


def _size(path: Path) -> int:
    """Bytes of a plain file. BundleCorrupt for anything else."""
    try:
        facts = os.lstat(path)
    except FileNotFoundError:
        raise BundleCorrupt(f"{path}: missing; {REMEDY}") from None
    if not stat.S_ISREG(facts.st_mode):
        raise BundleCorrupt(f"{path}: a link or special file; a corpus holds plain files only")
    return facts.st_size
