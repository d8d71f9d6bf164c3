"""Sorts the places of a text by the tokens that stand from there on, in memory that does not grow with the text.

The order is that of the first ORDER tokens, equal ones by place, so the same text gives the same array everywhere.
Knows nothing of files.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import pairwise

import numpy as np

ORDER = 8
"""Tokens from a place on that are sorted by."""
BUCKET = 2_000_000  # places sorted at a time, about 80 bytes each
CHUNK = 1_000_000  # tokens looked through at a time
SAMPLES = 64  # places a bucket's ends are estimated from

Progress = Callable[[float], None]
"""Called with the share of all work done since the last call."""


def sort_suffixes(
    tokens: np.ndarray, vocab_size: int, progress: Progress = lambda share: None, *, bucket: int = BUCKET
) -> Iterator[np.ndarray]:
    """Places of `tokens` (int32 [n], n < 2**31) in the order of what stands there, as int32 arrays one after another.

    Whatever is no id of the vocabulary is a separator: no place begins there, all are equal, and they and the text's
    end come behind every id.
    """
    count, bits = len(tokens), vocab_size.bit_length()
    per_key = min(ORDER, 63 // bits)
    bounds = _bounds(tokens, vocab_size, per_key, max(1, -(-count // bucket)))
    for low, high in pairwise(bounds):
        found = []
        for start in range(0, count, CHUNK):
            block = _clamped(tokens, start, min(start + CHUNK, count) + per_key, vocab_size)
            size = len(block) - per_key
            keys = _packed([block[i : i + size] for i in range(per_key)], bits)
            inside = (keys >= low) & (keys < high) & (block[:size] < vocab_size)
            found.append(start + np.flatnonzero(inside))
        progress(0.3 / (len(bounds) - 1))
        places = np.concatenate(found) if found else np.empty(0, np.int64)
        columns = [_at(tokens, places + i, vocab_size) for i in range(ORDER)]
        parts = [_packed(columns[i : i + per_key], bits) for i in range(0, ORDER, per_key)]
        yield places[np.lexsort(parts[::-1])].astype(np.int32)  # stable: equal ones stay in the order of places
        progress(0.7 / (len(bounds) - 1))


def _bounds(tokens: np.ndarray, vocab_size: int, per_key: int, num_buckets: int) -> list[int]:
    """First keys that part the places into about `num_buckets` alike, from 0 to above all."""
    bits = vocab_size.bit_length()
    step = max(1, len(tokens) // (SAMPLES * num_buckets))
    places = np.arange(0, len(tokens), step, dtype=np.int64)
    sample = np.sort(_packed([_at(tokens, places + i, vocab_size) for i in range(per_key)], bits))
    inner = sample[len(sample) * np.arange(1, num_buckets) // num_buckets] if len(sample) else sample
    return [0, *(int(key) for key in np.unique(inner) if key), 1 << (per_key * bits)]


def _packed(columns: list[np.ndarray], bits: int) -> np.ndarray:
    """One int64 key of several columns of ids, the first one weighing most."""
    key = columns[0].astype(np.int64)
    for column in columns[1:]:
        key <<= bits
        key |= column
    return key


def _clamped(tokens: np.ndarray, start: int, stop: int, vocab_size: int) -> np.ndarray:
    """`tokens[start:stop]` with separators, negative ids and what lies past the end as `vocab_size`."""
    ids = np.minimum(np.asarray(tokens[start:stop]).view(np.uint32), vocab_size).view(np.int32)
    return np.pad(ids, (0, stop - start - len(ids)), constant_values=vocab_size)


def _at(tokens: np.ndarray, places: np.ndarray, vocab_size: int) -> np.ndarray:
    """The same of single places."""
    ids = np.asarray(tokens[np.minimum(places, len(tokens) - 1)]).view(np.uint32)
    return np.where(places < len(tokens), np.minimum(ids, vocab_size), vocab_size).astype(np.int32)
