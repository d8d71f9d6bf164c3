"""A file of token ids that only grows: documents, each ended by a separator that holds its checksum.

A crash leaves at most a torn document at the end, and one that was damaged is told from those that were not. Knows
nothing of who writes it.
"""

from __future__ import annotations

import zlib
from array import array
from collections.abc import Sequence

import numpy as np

from tandem.artifacts.suffix import SEPARATOR

Span = tuple[int, int]
"""From, to, in int32 numbers."""


def sealed(ids: Sequence[int]) -> bytes:
    """A document of ids below SEPARATOR as it is appended: int32, little endian, its separator last."""
    data = np.asarray(ids, "<i4").tobytes()
    return data + np.int32(SEPARATOR + _checksum(data)).astype("<i4").tobytes()


def sound_spans(log: np.ndarray) -> list[Span]:
    """Stretches of whole, undamaged documents in int32 [n], in order and as long as they can be."""
    spans: list[Span] = []
    start = 0
    data = np.ascontiguousarray(log).view(np.uint8).data
    for end in np.flatnonzero(log >= SEPARATOR).tolist():
        if int(log[end]) - SEPARATOR == _checksum(data[4 * start : 4 * end]):
            if spans and spans[-1][1] == start:
                spans[-1] = (spans[-1][0], end + 1)
            else:
                spans.append((start, end + 1))
        start = end + 1
    return spans


def newer_half(log: np.ndarray) -> int:
    """Where the documents begin that are kept when the older half goes; the whole if it is one document."""
    ends = np.flatnonzero(log >= SEPARATOR)
    behind = ends[np.searchsorted(ends, len(log) // 2 - 1) :]
    return int(behind[0]) + 1 if len(behind) else len(log)


def unseen(ids: array[int], before: Sequence[array[int]], overlap: int) -> array[int]:
    """What of a document does not stand at the beginning of those `before`, with `overlap` more tokens in front.

    A chat's next request repeats the last one whole.
    """
    known = max((_common(ids, other) for other in before), default=0)
    return ids[max(0, known - overlap) :] if known < len(ids) else ids[:0]


def _common(a: array[int], b: array[int]) -> int:
    size = min(len(a), len(b))
    if a[:size] == b[:size]:
        return size
    return int(np.argmax(np.frombuffer(a, np.int32)[:size] != np.frombuffer(b, np.int32)[:size]))


def _checksum(data: bytes | memoryview) -> int:
    return zlib.crc32(data) & (SEPARATOR - 1)
