"""The program format: what is written is read back, and no damaged byte is taken for a program."""

from __future__ import annotations

import hashlib
import json
import struct

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tandem.artifacts.program import (
    CONSTANT,
    LAUNCH,
    MAX_HEADER,
    PARAM,
    REGIONS,
    Kernel,
    Program,
    Region,
    decode,
    encode,
)
from tandem.errors import BundleCorrupt, BundleMismatch

SHA = "ab" * 32
HEADER = {
    "version": 1,
    "kernels": [[SHA, "tdm_add", 2], [SHA, "tdm_mul", 1]],
    "regions": [["kv", 4096, 64], ["io", 640, 64]],
    "launches": 2,
    "params": 3,
}
LAUNCHES = [(0, 0, 2, 0), (1, 2, 1, 1)]
PARAMS = [(0, 64, 128), (CONSTANT, 1, 2**64 - 5), (1, 4, 636)]


def file(
    header: object = HEADER,
    launches: list[tuple[int, ...]] = LAUNCHES,
    params: list[tuple[int, ...]] = PARAMS,
    behind: bytes = b"",
) -> bytes:
    """A program file by hand, after the drawing in docs/bundle.md."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    text += b" " * (-(48 + len(text)) % 64)
    tables = b"".join(struct.pack("<4I", *row) for row in launches) + b"".join(
        struct.pack("<iIQ", *row) for row in params
    )
    length = struct.pack("<Q", len(text))
    rest = text + tables + behind
    return b"TDMPROG\n" + length + hashlib.sha256(length + rest).digest() + rest


def sample() -> Program:
    kernels = (Kernel(SHA, "tdm_add", 2), Kernel(SHA, "tdm_mul", 1))
    regions = (Region("kv", 4096), Region("io", 640))
    return Program(kernels, regions, np.array(LAUNCHES, LAUNCH), np.array(PARAMS, PARAM))


def same(one: Program, other: Program) -> bool:
    return (
        (one.kernels, one.regions) == (other.kernels, other.regions)
        and one.launches.tobytes() == other.launches.tobytes()
        and one.params.tobytes() == other.params.tobytes()
    )


@st.composite
def programs(draw: st.DrawFn) -> Program:
    names = draw(st.lists(st.sampled_from(REGIONS), unique=True, min_size=1))
    alignments = st.sampled_from([1, 2, 4, 8, 16, 32, 64])
    regions = tuple(Region(n, draw(st.integers(1, 2**62)), draw(alignments)) for n in names)
    symbols = st.text(min_size=1, max_size=9)
    kernels = tuple(
        Kernel(SHA, draw(symbols), arity) for arity in draw(st.lists(st.integers(0, 4), min_size=1, max_size=3))
    )
    launches: list[tuple[int, int, int, int]] = []
    params: list[tuple[int, int, int]] = []
    for kernel in draw(st.lists(st.integers(0, len(kernels) - 1), max_size=5)):
        launches.append((kernel, len(params), kernels[kernel].num_params, draw(st.integers(0, 1))))
        for _ in range(kernels[kernel].num_params):
            place = draw(st.integers(CONSTANT, len(regions) - 1))
            if place == CONSTANT:
                params.append((CONSTANT, 1, draw(st.integers(0, 2**64 - 1))))
                continue
            step = min(regions[place].alignment, draw(alignments))
            params.append((place, step, draw(st.integers(0, (regions[place].nbytes - 1) // step)) * step))
    return Program(kernels, regions, np.array(launches, LAUNCH), np.array(params, PARAM))


@given(programs())
def test_what_is_written_is_read_back(program: Program) -> None:
    data = encode(program)
    assert same(decode(data, "x"), program)
    assert encode(decode(data, "x")) == data


def test_the_bytes_are_those_of_the_drawing() -> None:
    compact = json.dumps(HEADER, separators=(",", ":")).encode()
    assert encode(sample()) == file(compact)
    assert same(decode(file(), "x"), sample())


def test_no_damage_goes_unseen() -> None:
    data = encode(sample())
    for place in range(len(data)):
        for bit in (0, 3, 7):
            spoilt = bytearray(data)
            spoilt[place] ^= 1 << bit
            with pytest.raises(BundleCorrupt, match=r"^extend\.tdp: "):
                decode(bytes(spoilt), "extend.tdp")
    for end in range(len(data)):
        with pytest.raises(BundleCorrupt, match=r"^extend\.tdp: "):
            decode(data[:end], "extend.tdp")
    with pytest.raises(BundleCorrupt, match=r"^extend\.tdp: "):
        decode(data + b"\0", "extend.tdp")


@given(st.binary(max_size=300))
def test_other_bytes_are_no_program(data: bytes) -> None:
    for spoilt in (data, b"TDMPROG\n" + data):
        with pytest.raises(BundleCorrupt):
            decode(spoilt, "x")


@pytest.mark.parametrize("version", [0, 2, 2**40, "1", None])
def test_another_version_is_named(version: object) -> None:
    with pytest.raises(BundleMismatch, match=f"x: program version {version}, this build reads 1"):
        decode(file(HEADER | {"version": version, "later": True}), "x")


def without(name: str) -> dict[str, object]:
    return {key: value for key, value in HEADER.items() if key != name}


@pytest.mark.parametrize(
    "header",
    [
        b"",
        b"[]",
        b"{",
        b"\xff",
        b"[" * 5000,
        *(without(name) for name in HEADER if name != "version"),
        HEADER | {"more": 1},
        HEADER | {"launches": -2},
        HEADER | {"launches": 3},
        HEADER | {"launches": 2**70},
        HEADER | {"params": 2},
        HEADER | {"params": "3"},
        HEADER | {"version": True},
        HEADER | {"version": 1.0},
        HEADER | {"kernels": [[SHA, "tdm_add"]]},
        HEADER | {"kernels": [[SHA, "tdm_add", 2]]},
        HEADER | {"kernels": [[SHA, "tdm_add", 2], [SHA, "tdm_mul", 2]]},
        HEADER | {"kernels": [[SHA, "tdm_add", 2**64 - 1], [SHA, "tdm_mul", 1]]},
        HEADER | {"regions": [["kv", 4096, 64], ["kv", 640, 64]]},
        HEADER | {"regions": [["kv", 4096, 64], ["heap", 640, 64]]},
        HEADER | {"regions": [["kv", 4096, 64]]},
        HEADER | {"regions": [["kv", -1, 64], ["io", 640, 64]]},
        HEADER | {"regions": [["kv", 128, 64], ["io", 640, 64]]},
        HEADER | {"regions": [["kv", 4096, 32], ["io", 640, 64]]},
        HEADER | {"regions": [["kv", 4096, 128], ["io", 640, 64]]},
        HEADER | {"regions": [["kv", 4096, 48], ["io", 640, 64]]},
        HEADER | {"regions": [["kv", 4096, 0], ["io", 640, 64]]},
    ],
    ids=repr,
)
def test_a_header_that_does_not_hold_is_refused(header: object) -> None:
    with pytest.raises((BundleCorrupt, BundleMismatch), match=r"^x: "):
        decode(file(header), "x")


@pytest.mark.parametrize(
    ("launches", "params"),
    [
        ([(2, 0, 2, 0), (1, 2, 1, 1)], PARAMS),  # kernel
        ([(0, 2, 2, 0), (1, 2, 1, 1)], PARAMS),  # past the last parameter
        ([(0, 2**32 - 1, 2, 0), (1, 2, 1, 1)], PARAMS),
        ([(0, 0, 1, 0), (1, 2, 1, 1)], PARAMS),  # argument count
        ([(0, 0, 2, 2), (1, 2, 1, 1)], PARAMS),  # wait
        (LAUNCHES, [(2, 1, 0), *PARAMS[1:]]),  # region
        (LAUNCHES, [(-2, 1, 0), *PARAMS[1:]]),
        (LAUNCHES, [(0, 1, 4096), *PARAMS[1:]]),  # offset outside
        (LAUNCHES, [(0, 1, 2**64 - 1), *PARAMS[1:]]),
        (LAUNCHES, [(0, 64, 32), *PARAMS[1:]]),  # alignment
        (LAUNCHES, [(0, 128, 128), *PARAMS[1:]]),
        (LAUNCHES, [(0, 3, 129), *PARAMS[1:]]),
        (LAUNCHES, [(0, 0, 128), *PARAMS[1:]]),
    ],
)
def test_a_launch_that_points_outside_is_refused(
    launches: list[tuple[int, ...]], params: list[tuple[int, ...]]
) -> None:
    with pytest.raises(BundleCorrupt, match="x: a launch points outside"):
        decode(file(launches=launches, params=params), "x")


def test_a_huge_header_is_refused() -> None:
    with pytest.raises(BundleCorrupt, match="header of"):
        decode(file(json.dumps(HEADER).encode() + b" " * MAX_HEADER), "x")
    length = struct.pack("<Q", 2**63)
    with pytest.raises(BundleCorrupt, match="header of"):
        decode(b"TDMPROG\n" + length + hashlib.sha256(length).digest(), "x")


def test_relocation_adds_bases_to_pointers_only() -> None:
    words = sample().relocate({"kv": 0x7F00_0000_0040, "io": 0x1000, "weights": 64})
    assert words.tolist() == [0x7F00_0000_0040 + 128, 2**64 - 5, 0x1000 + 636]
    with pytest.raises(ValueError, match="region io at 0x1020 is not 64-aligned"):
        sample().relocate({"kv": 64, "io": 0x1020})
