"""The layout of a GGUF file: header fields, tensor table and where each tensor's bytes lie, all checked for length.

Knows nothing of what the fields mean. Stands in for gguf.GGUFReader, which takes seconds for a vocabulary and counts
on without end when a damaged array claims more items than the file has bytes.
"""

from __future__ import annotations

import math
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from tandem.errors import CheckpointError

_SCALARS = {
    0: "<u1",
    1: "<i1",
    2: "<u2",
    3: "<i2",
    4: "<u4",
    5: "<i4",
    6: "<f4",
    7: "?",
    10: "<u8",
    11: "<i8",
    12: "<f8",
}
_STRING, _ARRAY = 8, 9
_VERSIONS = (2, 3)
_DEFAULT_ALIGNMENT = 32


class GgufTensor(NamedTuple):
    """A tensor as stored: `kind` is the type's name (`Q4_1`), `shape` has rows first, `data` is a view of the map."""

    name: str
    kind: str
    shape: tuple[int, ...]
    data: np.ndarray  # uint8 [num_bytes]


@dataclass(frozen=True, slots=True)
class GgufFile:
    """Header fields by full name, and tensors in file order. The data stay mapped as long as a tensor is held."""

    fields: dict[str, Any]
    tensors: list[GgufTensor]


def read_file(path: Path) -> GgufFile:
    """Read header and tensor table. CheckpointError if the file is no GGUF, truncated or damaged."""
    with path.open("rb") as file:
        if file.read(4) != b"GGUF":
            raise CheckpointError(f"{path}: not a GGUF file (wanted GGUF in its first bytes): fetch it again")
    cursor = _Cursor(path)
    version = cursor.number("<I")
    if version & 0xFFFF == 0:
        raise CheckpointError(f"{path}: written for a machine of the other byte order: use a little-endian file")
    if version not in _VERSIONS:
        raise CheckpointError(f"{path}: GGUF version {version}, wanted 2 or 3: convert the model again")
    num_tensors, num_fields = cursor.number("<Q"), cursor.number("<Q")
    fields: dict[str, Any] = {}
    for _ in range(num_fields):
        name = cursor.string()
        if name in fields:
            raise cursor.damaged(f"header field {name} stands there twice")
        fields[name] = cursor.value(cursor.number("<I"))
    table = [cursor.tensor() for _ in range(num_tensors)]
    alignment = fields.get("general.alignment", _DEFAULT_ALIGNMENT)
    if not isinstance(alignment, int) or alignment < 1:
        raise cursor.damaged(f"general.alignment is {alignment!r}")
    start = -(-cursor.offset // alignment) * alignment
    tensors = [
        GgufTensor(name, kind, shape, cursor.data(start + offset, size)) for name, kind, shape, offset, size in table
    ]
    if len({tensor.name for tensor in tensors}) != len(tensors):
        raise cursor.damaged("a tensor stands there twice")
    return GgufFile(fields, tensors)


class _Cursor:
    """Walks the mapped file; every step is checked against the file's end."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.map = np.memmap(path, dtype=np.uint8, mode="r")
        self.offset = 4

    def damaged(self, reason: str) -> CheckpointError:
        return CheckpointError(f"{self.path}: damaged: {reason}: fetch the file again")

    def data(self, begin: int, size: int) -> np.ndarray:
        """`size` bytes from `begin`, uint8, not copied."""
        if begin + size > len(self.map):
            raise CheckpointError(
                f"{self.path}: truncated or damaged: wanted at least {begin + size} bytes, found {len(self.map)}: "
                "fetch the file again"
            )
        return self.map[begin : begin + size]

    def take(self, size: int) -> bytes:
        taken = self.data(self.offset, size).tobytes()
        self.offset += size
        return taken

    def number(self, layout: str) -> int:
        number: int = struct.unpack(layout, self.take(struct.calcsize(layout)))[0]
        return number

    def string(self) -> str:
        try:
            return self.take(self.number("<Q")).decode("utf-8")
        except UnicodeDecodeError as error:
            raise self.damaged(f"a string before byte {self.offset} is not UTF-8") from error

    def value(self, kind: int) -> Any:
        """One header value; arrays as lists."""
        if kind == _STRING:
            return self.string()
        if kind in _SCALARS:
            return self.array(kind, 1)[0]
        if kind == _ARRAY:
            return self.array(self.number("<I"), self.number("<Q"))
        raise self.damaged(f"a header value before byte {self.offset} has the unknown type {kind}")

    def array(self, kind: int, count: int) -> list[Any]:
        if kind == _STRING:
            self.data(self.offset, 8 * count)  # each has a length at least: no long loop for a count that lies
            return [self.string() for _ in range(count)]
        if kind not in _SCALARS:
            raise self.damaged(f"an array before byte {self.offset} has items of the unknown type {kind}")
        layout = np.dtype(_SCALARS[kind])
        return np.frombuffer(self.take(layout.itemsize * count), layout).tolist()

    def tensor(self) -> tuple[str, str, tuple[int, ...], int, int]:
        """One line of the tensor table: name, type, shape, offset from the start of the data, bytes."""
        from gguf import GGML_QUANT_SIZES, GGMLQuantizationType

        name, num_dims = self.string(), self.number("<I")
        sizes = self.array(10, num_dims)  # fastest first
        number, offset = self.number("<I"), self.number("<Q")
        try:
            kind = GGMLQuantizationType(number)
            block_items, block_bytes = GGML_QUANT_SIZES[kind]
        except (ValueError, KeyError) as error:
            raise CheckpointError(
                f"{self.path}: tensor {name} has the unknown type number {number}: use the original safetensors"
            ) from error
        if not sizes or 0 in sizes or sizes[0] % block_items:
            raise self.damaged(f"tensor {name} {sizes} does not divide into blocks of {block_items} ({kind.name})")
        return name, kind.name, tuple(reversed(sizes)), offset, math.prod(sizes) // block_items * block_bytes
