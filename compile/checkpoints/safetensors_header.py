"""The header of a safetensors file, checked against the file's length before anything is mapped.

Knows nothing of models or folders. The `safetensors` package reads the tensors; it would find the same faults, but
names neither the file nor what to do.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tandem.compile.checkpoints.base import Stored
from tandem.errors import CheckpointError

_MAX_HEADER = 100_000_000  # the format's own limit
_ITEM_BYTES = {
    "BOOL": 1,
    "U8": 1,
    "I8": 1,
    "F8_E4M3": 1,
    "F8_E5M2": 1,
    "U16": 2,
    "I16": 2,
    "F16": 2,
    "BF16": 2,
    "U32": 4,
    "I32": 4,
    "F32": 4,
    "U64": 8,
    "I64": 8,
    "F64": 8,
}
_AGAIN = "fetch the file again"


def read_header(path: Path) -> dict[str, Stored]:
    """Tensors of the file by name. CheckpointError if it is truncated, has holes, overlaps or bytes to spare."""
    size = path.stat().st_size
    length, header = _header(path, size)
    found = {}
    end = 0
    for name, entry in sorted(_entries(path, header), key=lambda item: item[1][1]):
        dtype, (begin, stop), shape = entry
        if begin != end:
            raise CheckpointError(f"{path}: tensor {name} starts at byte {begin}, wanted {end}: {_AGAIN}")
        wanted = math.prod(shape) * _ITEM_BYTES[dtype]
        if stop - begin != wanted:
            raise CheckpointError(
                f"{path}: tensor {name} {dtype}{list(shape)} wants {wanted} bytes, found {stop - begin}: {_AGAIN}"
            )
        found[name] = Stored(dtype, shape, wanted)
        end = stop
    if 8 + length + end != size:
        state = "truncated" if size < 8 + length + end else "too long"
        raise CheckpointError(f"{path}: {state}: wanted {8 + length + end} bytes, found {size}: {_AGAIN}")
    return found


def _header(path: Path, size: int) -> tuple[int, dict[str, Any]]:
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if size < 8 or length > min(size - 8, _MAX_HEADER):
            raise CheckpointError(
                f"{path}: truncated or not safetensors: its header wants {length} bytes, found {max(size - 8, 0)}: "
                f"{_AGAIN}"
            )
        try:
            header = json.loads(file.read(length), object_pairs_hook=_without_repeats)
        except (ValueError, RecursionError) as error:
            raise CheckpointError(f"{path}: its header is not valid JSON ({error}): {_AGAIN}") from error
    if not isinstance(header, dict):
        raise CheckpointError(f"{path}: its header is not a JSON object: {_AGAIN}")
    return length, header


def _without_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    fields = dict(pairs)
    if len(fields) != len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"{next(name for name in names if names.count(name) > 1)} stands there twice")
    return fields


def _entries(path: Path, header: dict[str, Any]) -> Iterator[tuple[str, tuple[str, tuple[int, int], tuple[int, ...]]]]:
    for name, entry in header.items():
        if name == "__metadata__":
            continue
        match entry:
            case {"dtype": str(dtype), "shape": list(shape), "data_offsets": [int(begin), int(stop)]} if all(
                isinstance(size, int) and size >= 0 for size in shape
            ):
                pass
            case _:
                raise CheckpointError(f"{path}: tensor {name} is not described as safetensors asks: {_AGAIN}")
        if dtype not in _ITEM_BYTES:
            raise CheckpointError(
                f"{path}: tensor {name} has dtype {dtype}, wanted one of {', '.join(_ITEM_BYTES)}: convert it first"
            )
        yield name, (dtype, (begin, stop), tuple(shape))
