"""The program format: an entry as a list of kernel launches over regions, every pointer a (region, offset).

Knows nothing of devices, models or kernels' insides. `docs/bundle.md` draws the bytes.
"""

from __future__ import annotations

import hashlib
from typing import Any

import msgspec
import numpy as np

from tandem.artifacts import program_check
from tandem.artifacts.program_tables import (
    CONSTANT,
    EDGE,
    FULL,
    LAUNCH,
    MAX_ALIGNMENT,
    PARAM,
    PROGRAMMATIC,
    REGIONS,
    Kernel,
    Program,
    Region,
)
from tandem.errors import BundleCorrupt, BundleMismatch

__all__ = [
    "CONSTANT",
    "EDGE",
    "FULL",
    "LAUNCH",
    "MAX_ALIGNMENT",
    "MAX_HEADER",
    "PARAM",
    "PROGRAMMATIC",
    "REGIONS",
    "VERSION",
    "Kernel",
    "Program",
    "Region",
    "decode",
    "encode",
]

MAGIC = b"TDMPROG\n"
VERSION = 2
MAX_HEADER = 1 << 20
_DIGEST, _START = len(MAGIC) + 8, len(MAGIC) + 8 + 32


def encode(program: Program) -> bytes:
    """The file's bytes, a function of the program alone."""
    header = {
        "version": VERSION,
        "kernels": [[k.binary, k.symbol, k.param_sizes, k.shared] for k in program.kernels],
        "regions": [[r.name, r.nbytes, r.alignment] for r in program.regions],
        "launches": len(program.launches),
        "params": len(program.params),
        "edges": len(program.edges),
    }
    text = msgspec.json.encode(header)
    text += b" " * (-(_START + len(text)) % 64)
    tables = (program.launches, LAUNCH), (program.params, PARAM), (program.edges, EDGE)
    rest = text + b"".join(table.astype(dtype).tobytes() for table, dtype in tables)
    length = len(text).to_bytes(8, "little")
    return MAGIC + length + hashlib.sha256(length + rest).digest() + rest


class _Header(msgspec.Struct, forbid_unknown_fields=True):
    version: int
    kernels: list[tuple[str, str, tuple[int, ...], int]]
    regions: list[tuple[str, int, int]]
    launches: int
    params: int
    edges: int


def decode(data: bytes, where: str) -> Program:
    """Reads and checks every index of a program. `where` names the file in errors.

    Raises BundleCorrupt for damaged bytes and BundleMismatch for another version.
    """
    if data[: len(MAGIC)] != MAGIC:
        raise BundleCorrupt(f"{where}: not a program (wrong first bytes); rebuild the bundle")
    length, digest, rest = data[len(MAGIC) : _DIGEST], data[_DIGEST:_START], data[_START:]
    if hashlib.sha256(length + rest).digest() != digest:
        raise BundleCorrupt(f"{where}: differs from its own sha256; rebuild the bundle")
    header_bytes = int.from_bytes(length, "little")
    if header_bytes > min(MAX_HEADER, len(rest)):
        raise BundleCorrupt(f"{where}: a header of {header_bytes} bytes; rebuild the bundle")
    header = _read_header(rest[:header_bytes], where)
    launches, params, edges = _read_tables(rest[header_bytes:], header, where)
    kernels = tuple(Kernel(*kernel) for kernel in header.kernels)
    program = Program(kernels, tuple(Region(*region) for region in header.regions), launches, params, edges)
    if fault := program_check.fault(program):
        raise BundleCorrupt(f"{where}: {fault}; rebuild the bundle")
    return program


def _read_header(text: bytes, where: str) -> _Header:
    try:
        version: Any = msgspec.json.decode(text).get("version")
        if version != VERSION:
            raise BundleMismatch(f"{where}: program version {version}, this build reads {VERSION}; rebuild the bundle")
        return msgspec.json.decode(text, type=_Header)
    except (msgspec.DecodeError, AttributeError, RecursionError) as error:
        raise BundleCorrupt(f"{where}: unreadable header ({error}); rebuild the bundle") from None


def _read_tables(data: bytes, header: _Header, where: str) -> list[np.ndarray]:
    """Launches, params and edges, which fill `data` to the last byte."""
    counts = ((header.launches, LAUNCH), (header.params, PARAM), (header.edges, EDGE))
    wanted = sum(count * dtype.itemsize for count, dtype in counts)
    if min(count for count, _ in counts) < 0 or len(data) != wanted:
        raise BundleCorrupt(f"{where}: tables of {len(data)} bytes, {wanted} declared; rebuild the bundle")
    tables, offset = [], 0
    for count, dtype in counts:
        tables.append(np.frombuffer(data, dtype, count, offset))
        offset += count * dtype.itemsize
    return tables
