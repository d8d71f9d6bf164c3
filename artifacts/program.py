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
MAX_ALIGNMENT = 64
"""Where every runtime places regions: at multiples of this."""
REGIONS = ("weights", "kv", "state", "io", "scratch")
CONSTANT = -1
"""The `region` of a parameter whose value is the argument itself."""

LAUNCH = np.dtype([("kernel", "<u4"), ("first_param", "<u4"), ("num_params", "<u4"), ("wait", "<u4")])
PARAM = np.dtype([("region", "<i4"), ("alignment", "<u4"), ("value", "<u8")])
_DIGEST, _START = len(MAGIC) + 8, len(MAGIC) + 8 + 32
_ALIGNMENTS = (1, 2, 4, 8, 16, 32, 64)


@dataclass(frozen=True, slots=True)
class Kernel:
    """A symbol of a content-addressed binary (`binary` is its sha256) and how many 8-byte arguments it takes."""

    binary: str
    symbol: str
    num_params: int


@dataclass(frozen=True, slots=True)
class Region:
    """A span of memory, one of REGIONS, of at least `nbytes`: for `kv` one page, the runtime chooses how many."""

    name: str
    nbytes: int
    alignment: int = MAX_ALIGNMENT


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
    header = {
        "version": VERSION,
        "kernels": [[k.binary, k.symbol, k.num_params] for k in program.kernels],
        "regions": [[r.name, r.nbytes, r.alignment] for r in program.regions],
        "launches": len(program.launches),
        "params": len(program.params),
    }
    text = msgspec.json.encode(header)
    text += b" " * (-(_START + len(text)) % 64)
    tables = program.launches.astype(LAUNCH).tobytes() + program.params.astype(PARAM).tobytes()
    length = len(text).to_bytes(8, "little")
    return MAGIC + length + hashlib.sha256(length + text + tables).digest() + text + tables


class _Header(msgspec.Struct, forbid_unknown_fields=True):
    version: int
    kernels: list[tuple[str, str, int]]
    regions: list[tuple[str, int, int]]
    launches: int
    params: int


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
    header, tables = _read_header(rest[:header_bytes], where), rest[header_bytes:]
    wanted = header.launches * LAUNCH.itemsize + header.params * PARAM.itemsize
    if min(header.launches, header.params) < 0 or len(tables) != wanted:
        raise BundleCorrupt(f"{where}: tables of {len(tables)} bytes, {wanted} declared; rebuild the bundle")
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
    if not (_sound_regions(program.regions) and _sound_launches(program) and _sound_params(program)):
        raise BundleCorrupt(f"{where}: a launch points outside its kernels, arguments or regions; rebuild the bundle")


def _sound_regions(regions: tuple[Region, ...]) -> bool:
    names = [region.name for region in regions]
    known = len(set(names)) == len(names) and set(names) <= set(REGIONS)
    return known and all(0 <= region.nbytes < 1 << 63 and region.alignment in _ALIGNMENTS for region in regions)


def _sound_launches(program: Program) -> bool:
    launches = program.launches
    arity = np.array([kernel.num_params for kernel in program.kernels] or [0])
    last = launches["first_param"].astype(np.int64) + launches["num_params"]
    return bool(
        np.all(launches["kernel"] < len(program.kernels))
        and np.all(arity[launches["kernel"]] == launches["num_params"])
        and np.all(last <= len(program.params))
        and np.all(launches["wait"] <= 1)
    )


def _sound_params(program: Program) -> bool:
    regions, pointers = program.regions, program.params[program.params["region"] != CONSTANT]
    region, alignment, value = pointers["region"], pointers["alignment"], pointers["value"]
    if not np.all((region >= 0) & (region < len(regions))):
        return False
    nbytes = np.array([r.nbytes for r in regions], np.uint64)[region]
    most = np.array([r.alignment for r in regions], np.uint32)[region]
    return bool(
        np.all(value < nbytes)
        and np.all(np.isin(alignment, _ALIGNMENTS) & (alignment <= most))
        and np.all(value % np.maximum(alignment, 1) == 0)
    )
