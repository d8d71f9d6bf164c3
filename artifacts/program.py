"""The program format: an entry as a list of kernel launches over regions, every pointer a (region, offset).

Knows nothing of devices, models or kernels' insides. `docs/bundle.md` draws the bytes.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np

from tandem.errors import BundleCorrupt, BundleMismatch

MAGIC = b"TDMPROG\n"
VERSION = 1
MAX_HEADER = 1 << 20
CONSTANT = -1
"""The `region` of a parameter whose value is the argument itself."""

LAUNCH = np.dtype([("kernel", "<u4"), ("first_param", "<u4"), ("num_params", "<u4"), ("wait", "<u4")])
PARAM = np.dtype([("region", "<i4"), ("alignment", "<u4"), ("value", "<u8")])


@dataclass(frozen=True, slots=True)
class Kernel:
    """A symbol of a content-addressed binary (`binary` is its sha256) and how many 8-byte arguments it takes."""

    binary: str
    symbol: str
    num_params: int


@dataclass(frozen=True, slots=True)
class Region:
    """A span of memory. `nbytes` 0 means that the runtime chooses the size (pages of `kv`)."""

    name: str
    nbytes: int
    alignment: int = 64


@dataclass(frozen=True, slots=True)
class Program:
    """`launches` (dtype LAUNCH) run in order; `wait` 1 asks for all earlier launches to have ended."""

    kernels: tuple[Kernel, ...]
    regions: tuple[Region, ...]
    launches: np.ndarray
    params: np.ndarray

    def relocate(self, bases: dict[str, int]) -> np.ndarray:
        """Argument words [params] uint64 for regions at the addresses `bases`, which must be aligned."""
        table = np.zeros(len(self.regions) + 1, np.uint64)
        for i, region in enumerate(self.regions):
            if bases[region.name] % region.alignment:
                raise ValueError(f"region {region.name} at {bases[region.name]:#x} is not {region.alignment}-aligned")
            table[i] = bases[region.name]
        return self.params["value"] + table[self.params["region"]]  # CONSTANT, -1, reads the zero at the end


def encode(program: Program) -> bytes:
    """The file's bytes, a function of the program alone."""
    tables = program.launches.astype(LAUNCH).tobytes() + program.params.astype(PARAM).tobytes()
    header = {
        "version": VERSION,
        "kernels": [[k.binary, k.symbol, k.num_params] for k in program.kernels],
        "regions": [[r.name, r.nbytes, r.alignment] for r in program.regions],
        "launches": len(program.launches),
        "params": len(program.params),
        "tables_sha256": hashlib.sha256(tables).hexdigest(),
    }
    text = msgspec.json.encode(header)
    text += b" " * (-(len(MAGIC) + 8 + len(text)) % 64)
    return MAGIC + len(text).to_bytes(8, "little") + text + tables


class _Header(msgspec.Struct, forbid_unknown_fields=True):
    version: int
    kernels: list[tuple[str, str, int]]
    regions: list[tuple[str, int, int]]
    launches: int
    params: int
    tables_sha256: str


def decode(data: bytes, where: str) -> Program:
    """Reads and checks every index of a program. `where` names the file in errors.

    Raises BundleCorrupt for damaged bytes and BundleMismatch for another version.
    """
    if data[: len(MAGIC)] != MAGIC:
        raise BundleCorrupt(f"{where}: not a program (wrong first bytes); rebuild the bundle")
    start = len(MAGIC) + 8
    length = int.from_bytes(data[len(MAGIC) : start], "little")
    if length > MAX_HEADER or start + length > len(data):
        raise BundleCorrupt(f"{where}: header of {length} bytes does not fit; rebuild the bundle")
    header = _read_header(data[start : start + length], where)
    tables = data[start + length :]
    wanted = header.launches * LAUNCH.itemsize + header.params * PARAM.itemsize
    if min(header.launches, header.params) < 0 or len(tables) != wanted:
        raise BundleCorrupt(f"{where}: tables of {len(tables)} bytes, {wanted} declared; rebuild the bundle")
    if hashlib.sha256(tables).hexdigest() != header.tables_sha256:
        raise BundleCorrupt(f"{where}: tables differ from their sha256; rebuild the bundle")
    split = header.launches * LAUNCH.itemsize
    program = Program(
        tuple(Kernel(*k) for k in header.kernels),
        tuple(Region(*r) for r in header.regions),
        np.frombuffer(tables[:split], LAUNCH),
        np.frombuffer(tables[split:], PARAM),
    )
    _check(program, where)
    return program


def _read_header(text: bytes, where: str) -> _Header:
    try:
        version: Any = msgspec.json.decode(text).get("version")
        if version != VERSION:
            raise BundleMismatch(f"{where}: program version {version}, this build reads {VERSION}; rebuild the bundle")
        return msgspec.json.decode(text, type=_Header)
    except (msgspec.DecodeError, AttributeError, RecursionError) as error:
        raise BundleCorrupt(f"{where}: unreadable header ({error}); rebuild the bundle") from None


def _check(program: Program, where: str) -> None:
    launches, params, regions = program.launches, program.params, program.regions
    arity = np.array([k.num_params for k in program.kernels] or [0])
    last = launches["first_param"].astype(np.int64) + launches["num_params"]
    sizes = np.array([r.nbytes or 1 << 62 for r in regions] + [1 << 62], np.uint64)
    aligned = all(r.alignment > 0 and r.nbytes >= 0 for r in regions)
    sound = (
        aligned
        and np.all(launches["kernel"] < len(program.kernels))
        and np.all(last <= len(params))
        and np.all(arity[launches["kernel"]] == launches["num_params"])
        and np.all((params["region"] >= CONSTANT) & (params["region"] < len(regions)))
    )
    inside = sound and np.all((params["region"] == CONSTANT) | (params["value"] < sizes[params["region"]]))
    if not inside:
        raise BundleCorrupt(f"{where}: a launch points outside its kernels, arguments or regions; rebuild the bundle")
