"""The header of a safetensors file that anybody may have written: every span inside, none over another, no hole.

Knows nothing of what the tensors are for.
"""

from __future__ import annotations

import math
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tandem.artifacts import canonical
from tandem.artifacts.layout import REMEDY
from tandem.errors import BundleCorrupt

MAX_HEADER_BYTES = 16 << 20

ITEM_BYTES = {
    "BOOL": 1, "U8": 1, "I8": 1, "F8_E4M3": 1, "F8_E5M2": 1, "U16": 2, "I16": 2, "F16": 2, "BF16": 2,
    "U32": 4, "I32": 4, "F32": 4, "U64": 8, "I64": 8, "F64": 8,
}  # fmt: skip
"""Bytes of one element, by safetensors' name of its type."""

_FIELDS = {"dtype", "shape", "data_offsets"}
_METADATA = "__metadata__"


@dataclass(frozen=True, slots=True)
class TensorSpan:
    """A tensor's type, shape and place: bytes `begin` up to `end` behind the header."""

    dtype: str
    shape: tuple[int, ...]
    begin: int
    end: int

    @classmethod
    def place(cls, dtype: str, shape: tuple[int, ...], begin: int) -> TensorSpan:
        return cls(dtype, shape, begin, begin + math.prod(shape) * ITEM_BYTES[dtype])

    @property
    def nbytes(self) -> int:
        return self.end - self.begin


def read_header(path: Path, alignment: int = 1) -> tuple[int, dict[str, TensorSpan]]:
    """The file offset where data begins, and every tensor's span by name.

    BundleCorrupt, which names the file and what is wrong, unless the header describes the file to its last byte
    and every tensor that is no padding starts at a multiple of `alignment` in the file.
    """
    with open(path, "rb") as file:
        size = os.fstat(file.fileno()).st_size
        length = int.from_bytes(file.read(8), "little")
        if size < 8 or length > MAX_HEADER_BYTES or 8 + length > size:
            raise _corrupt(path.name, f"cut short, or a header over {MAX_HEADER_BYTES} bytes")
        header = canonical.decode(file.read(length), path.name)
    base = 8 + length
    if not isinstance(header, dict):
        raise _corrupt(path.name, "the header is no JSON object")
    header.pop(_METADATA, None)
    spans = {name: _span(path.name, name, value) for name, value in header.items()}
    _check_cover(path.name, spans, size - base)
    for name, span in spans.items():
        if not name.startswith("pad.") and (base + span.begin) % alignment:
            raise _corrupt(path.name, f"tensor {name!r} is not at a multiple of {alignment} bytes")
    return base, spans


def _span(file: str, name: str, value: Any) -> TensorSpan:
    if not isinstance(value, dict) or set(value) != _FIELDS:
        raise _corrupt(file, f"tensor {name!r} wants dtype, shape and data_offsets, nothing else")
    dtype, shape, offsets = value["dtype"], value["shape"], value["data_offsets"]
    if not isinstance(dtype, str) or dtype not in ITEM_BYTES:
        raise _corrupt(file, f"tensor {name!r} has the unknown dtype {dtype!r}")
    if not _naturals(shape) or not _naturals(offsets) or len(offsets) != 2:
        raise _corrupt(file, f"tensor {name!r} has a shape or offsets that are no lists of natural numbers")
    span = TensorSpan.place(dtype, tuple(shape), offsets[0])
    if span.end != offsets[1]:
        raise _corrupt(file, f"tensor {name!r} spans {offsets[1] - offsets[0]} bytes, its shape {span.nbytes}")
    return span


def _naturals(value: Any) -> bool:
    return isinstance(value, list) and all(type(n) is int and 0 <= n < 1 << 63 for n in value)


def _check_cover(file: str, spans: dict[str, TensorSpan], nbytes: int) -> None:
    reached = 0
    for name, span in sorted(spans.items(), key=lambda item: (item[1].begin, item[1].end)):
        if span.begin != reached:
            fault = "overlaps the one before" if span.begin < reached else "leaves a hole before it"
            raise _corrupt(file, f"tensor {name!r} {fault}")
        reached = span.end
    if reached != nbytes:
        raise _corrupt(file, f"tensors end at byte {reached}, the data at {nbytes}")


def _corrupt(file: str, fault: str) -> BundleCorrupt:
    return BundleCorrupt(f"{file}: {fault}; {REMEDY}")
