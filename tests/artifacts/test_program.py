"""The program format: what is written is read back, and no damaged byte is taken for a program."""

from __future__ import annotations

import hashlib
import json
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tandem.artifacts.program import MAX_HEADER, Program, decode, encode
from tandem.errors import BundleCorrupt, BundleMismatch
from tests.artifacts.programs import CUDA_HEADER, HEADER, SHA, cuda_file, cuda_sample, file, programs, sample


def same(one: Program, other: Program) -> bool:
    tables = ("launches", "params", "edges")
    return (one.kernels, one.regions) == (other.kernels, other.regions) and all(
        getattr(one, name).tobytes() == getattr(other, name).tobytes() for name in tables
    )


@given(programs())
def test_what_is_written_is_read_back(program: Program) -> None:
    data = encode(program)
    assert same(decode(data, "x"), program)
    assert encode(decode(data, "x")) == data


def test_the_bytes_are_those_of_the_drawing() -> None:
    compact, cuda = (json.dumps(header, separators=(",", ":")).encode() for header in (HEADER, CUDA_HEADER))
    assert encode(sample()) == file(compact) and encode(cuda_sample()) == cuda_file(header=cuda)
    assert same(decode(file(), "x"), sample()) and same(decode(cuda_file(), "x"), cuda_sample())
    assert cuda_sample().on_gpu and not sample().on_gpu


@pytest.mark.parametrize("program", [sample(), cuda_sample()], ids=["cpu", "cuda"])
def test_no_damage_goes_unseen(program: Program) -> None:
    data = encode(program)
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


@pytest.mark.parametrize("version", [0, 1, 3, 2**40, "2", None])
def test_another_version_is_named(version: object) -> None:
    with pytest.raises(BundleMismatch, match=f"x: program version {version}, this build reads 2"):
        decode(file(HEADER | {"version": version, "later": True}), "x")


MUL: list[object] = [SHA, "tdm_mul", [8], 0]
ODD_KERNELS: list[list[object]] = [
    [[SHA, "tdm_add"]],
    [[SHA, "tdm_add", [8, 8]]],
    [[SHA, "tdm_add", [8, 8], 0]],
    [[SHA, "tdm_add", 2, 0], MUL],
    [[SHA, "tdm_add", [8, 8], 0], [SHA, "tdm_mul", [8, 8], 0]],
    [[SHA, "tdm_add", [8, 16], 0], MUL],
    [[SHA, "tdm_add", [8, 4], 0], MUL],
    [[SHA, "tdm_add", [8, -8], 0], MUL],
    [[SHA, "tdm_add", [8, 8], 1], MUL],
    [[SHA, "tdm_add", [8, 8], -1], MUL],
    [[SHA, "tdm_add", [8, 8], 2**70], MUL],
    [["../x", "tdm_add", [8, 8], 0], MUL],
    [[SHA, "", [8, 8], 0], MUL],
]


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
        HEADER | {"edges": 1},
        HEADER | {"edges": -1},
        *(HEADER | {"kernels": kernels} for kernels in ODD_KERNELS),
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
