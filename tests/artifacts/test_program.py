"""The program format: what is written is read back, and no damaged byte is taken for a program."""

from __future__ import annotations

import hashlib
import json
import struct
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tandem.artifacts.program import (
    CONSTANT,
    EDGE,
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
    "version": 2,
    "kernels": [[SHA, "tdm_add", [8, 8], 0], [SHA, "tdm_mul", [8], 0]],
    "regions": [["kv", 4096, 64], ["io", 640, 64]],
    "launches": 2,
    "params": 3,
    "edges": 0,
}
HOST = (0, 0, 0, 0, 0, 0, 0)
"""Grid, block and shared memory of a launch on a CPU."""
LAUNCHES = [(0, 0, 2, 0, *HOST), (1, 2, 1, 1, *HOST)]
PARAMS = [(0, 64, 128, 3968), (CONSTANT, 1, 2**64 - 5, 0), (1, 4, 636, 4)]

CUDA_HEADER = HEADER | {"kernels": [[SHA, "add", [8, 4], 4096], ["cd" * 32, "mul", [8], 0]], "edges": 1}
CUDA_LAUNCHES = [(0, 0, 2, 0, 132, 1, 1, 128, 1, 1, 4096), (1, 2, 1, 0, 7, 65535, 2, 16, 8, 8, 0)]
CUDA_PARAMS = [(0, 64, 128, 3968), (CONSTANT, 1, 2**32 - 5, 0), (1, 4, 636, 4)]
EDGES = [(0, 1, 1, 0, 1, 0)]
"""Source, target, ports, type, padding."""


def file(
    header: object = HEADER,
    launches: list[tuple[int, ...]] = LAUNCHES,
    params: list[tuple[int, ...]] = PARAMS,
    edges: Sequence[tuple[int, ...]] = (),
) -> bytes:
    """A program file by hand, after the drawing in docs/bundle.md."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    text += b" " * (-(48 + len(text)) % 64)
    tables = b"".join(struct.pack("<11I", *row) for row in launches)
    tables += b"".join(struct.pack("<iIQQ", *row) for row in params)
    tables += b"".join(struct.pack("<2I3B", *row[:5]) + row[5].to_bytes(5, "little") for row in edges)
    length = struct.pack("<Q", len(text))
    rest = text + tables
    return b"TDMPROG\n" + length + hashlib.sha256(length + rest).digest() + rest


def cuda_file(**changes: Any) -> bytes:
    facts = {"header": CUDA_HEADER, "launches": CUDA_LAUNCHES, "params": CUDA_PARAMS, "edges": EDGES}
    return file(**(facts | changes))


def row(launch: tuple[int, ...]) -> tuple[Any, ...]:
    """A row of LAUNCH from eleven numbers."""
    return (*launch[:4], launch[4:7], launch[7:10], launch[10])


def sample() -> Program:
    kernels = (Kernel(SHA, "tdm_add", (8, 8)), Kernel(SHA, "tdm_mul", (8,)))
    regions = (Region("kv", 4096), Region("io", 640))
    return Program(kernels, regions, np.array([row(x) for x in LAUNCHES], LAUNCH), np.array(PARAMS, PARAM))


def cuda_sample() -> Program:
    kernels = (Kernel(SHA, "add", (8, 4), 4096), Kernel("cd" * 32, "mul", (8,), 0))
    launches, params = np.array([row(x) for x in CUDA_LAUNCHES], LAUNCH), np.array(CUDA_PARAMS, PARAM)
    edges = np.zeros(1, EDGE)
    edges["target"] = edges["from_port"] = edges["type"] = 1
    return Program(kernels, sample().regions, launches, params, edges)


def same(one: Program, other: Program) -> bool:
    tables = ("launches", "params", "edges")
    return (one.kernels, one.regions) == (other.kernels, other.regions) and all(
        getattr(one, name).tobytes() == getattr(other, name).tobytes() for name in tables
    )


ALIGNMENTS = st.sampled_from([1, 2, 4, 8, 16, 32, 64])


@st.composite
def programs(draw: st.DrawFn) -> Program:
    """Any sound program, of a CPU or of a GPU."""
    on_gpu = draw(st.booleans())
    names = draw(st.lists(st.sampled_from(REGIONS), unique=True, min_size=1))
    regions = tuple(Region(n, draw(st.integers(1, 2**62)), draw(ALIGNMENTS)) for n in names)
    taken = st.lists(st.sampled_from([1, 2, 4, 8] if on_gpu else [8]), max_size=4).map(tuple)
    shared = st.integers(0, 227 * 1024 if on_gpu else 0)
    kernels = tuple(
        Kernel(SHA, draw(st.text(min_size=1, max_size=9)), sizes, draw(shared))
        for sizes in draw(st.lists(taken, min_size=1, max_size=3))
    )
    launches: list[tuple[Any, ...]] = []
    params: list[tuple[int, ...]] = []
    for which in draw(st.lists(st.integers(0, len(kernels) - 1), min_size=1, max_size=5)):
        called = kernels[which]
        shape = draw(shapes(called.shared)) if on_gpu else ((0, 0, 0), (0, 0, 0), 0)
        launches.append((which, len(params), len(called.param_sizes), draw(st.integers(0, 1)), *shape))
        params += [draw(arguments(size, regions)) for size in called.param_sizes]
    return Program(
        kernels,
        regions,
        np.array(launches, LAUNCH),
        np.array(params, PARAM),
        draw(edges(len(launches) if on_gpu else 0)),
    )


@st.composite
def shapes(draw: st.DrawFn, most_shared: int) -> tuple[Any, ...]:
    grid = tuple(draw(st.integers(1, most)) for most in (2**31 - 1, 65535, 65535))
    block = draw(st.sampled_from([(1, 1, 1), (1024, 1, 1), (1, 1024, 1), (16, 1, 64), (32, 32, 1)]))
    return grid, block, draw(st.integers(0, most_shared))


@st.composite
def arguments(draw: st.DrawFn, size: int, regions: tuple[Region, ...]) -> tuple[int, ...]:
    place = draw(st.integers(CONSTANT, len(regions) - 1 if size == 8 else CONSTANT))
    if place == CONSTANT:
        return CONSTANT, 1, draw(st.integers(0, 256**size - 1)), 0
    step = min(regions[place].alignment, draw(ALIGNMENTS))
    value = draw(st.integers(0, (regions[place].nbytes - 1) // step)) * step
    return place, step, value, draw(st.integers(0, regions[place].nbytes - value))


@st.composite
def edges(draw: st.DrawFn, launches: int) -> np.ndarray:
    ports = st.sampled_from([(0, 0, 0), (1, 0, 1), (2, 0, 1)])
    pairs = [(i, j) for j in range(launches) for i in range(j) if draw(st.booleans())]
    return np.array([(*pair, *draw(ports), (0,) * 5) for pair in pairs], EDGE)


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


@pytest.mark.parametrize(
    ("launches", "params", "words"),
    [
        ([(2, 0, 2, 0, *HOST), LAUNCHES[1]], PARAMS, "launch 0 is of kernel 2, there are 2"),
        ([(0, 2, 2, 0, *HOST), LAUNCHES[1]], PARAMS, "the arguments of launch 0 do not stand behind"),
        ([LAUNCHES[0], (1, 1, 1, 1, *HOST)], PARAMS, "the arguments of launch 1 do not stand behind"),
        ([LAUNCHES[0], (1, 2**32 - 1, 1, 1, *HOST)], PARAMS, "the arguments of launch 1 do not stand behind"),
        ([(0, 0, 1, 0, *HOST), LAUNCHES[1]], PARAMS, "launch 0 has 1 arguments and wait 0, 2 wanted"),
        ([(0, 0, 2, 2, *HOST), LAUNCHES[1]], PARAMS, "launch 0 has 2 arguments and wait 2"),
        ([LAUNCHES[0], (0, 2, 2, 0, *HOST)], PARAMS, "launches take 4 arguments, there are 3"),
        ([(0, 0, 2, 0, 1, 0, 0, 0, 0, 0, 0), LAUNCHES[1]], PARAMS, "launches without blocks have no grid"),
        ([(0, 0, 2, 0, 0, 0, 0, 0, 0, 0, 1), LAUNCHES[1]], PARAMS, "launches without blocks have no grid"),
        ([(0, 0, 2, 0, 1, 1, 1, 32, 1, 1, 0), LAUNCHES[1]], PARAMS, r"launch 1 has a grid of \[0 0 0\]"),
        (LAUNCHES, [(2, 1, 0, 0), *PARAMS[1:]], r"argument 0 of launch 0 \(tdm_add\) is byte 0 of region 2"),
        (LAUNCHES, [(-2, 1, 0, 0), *PARAMS[1:]], "is byte 0 of region -2"),
        (LAUNCHES, [(0, 1, 4096, 0), *PARAMS[1:]], "is byte 4096 of kv, which has 4096: 0 bytes from there"),
        (LAUNCHES, [(0, 1, 2**64 - 1, 1), *PARAMS[1:]], "of kv, which has 4096: 1 bytes"),
        (LAUNCHES, [(0, 64, 128, 3969), *PARAMS[1:]], "is byte 128 of kv, which has 4096: 3969 bytes"),
        (LAUNCHES, [(0, 64, 128, 2**64 - 1), *PARAMS[1:]], "is byte 128 of kv"),
        (LAUNCHES, [*PARAMS[:2], (1, 4, 636, 5)], r"argument 0 of launch 1 \(tdm_mul\) is byte 636 of io"),
        (LAUNCHES, [PARAMS[0], (CONSTANT, 1, 7, 1), PARAMS[2]], "argument 1 of launch 0"),
        (LAUNCHES, [(0, 64, 32, 0), *PARAMS[1:]], "at a multiple of 64"),
        (LAUNCHES, [(0, 128, 128, 0), *PARAMS[1:]], "at a multiple of 128"),
        (LAUNCHES, [(0, 3, 129, 0), *PARAMS[1:]], "at a multiple of 3"),
        (LAUNCHES, [(0, 0, 128, 0), *PARAMS[1:]], "at a multiple of 0"),
    ],
)
def test_a_launch_that_points_outside_is_refused(
    launches: list[tuple[int, ...]], params: list[tuple[int, ...]], words: str
) -> None:
    with pytest.raises(BundleCorrupt, match=f"^x: .*{words}.*; rebuild the bundle"):
        decode(file(launches=launches, params=params), "x")


def shaped(*shape: int) -> dict[str, Any]:
    """The sample with another grid, block and shared memory in its second launch, whose kernel asks for none."""
    return {"launches": [CUDA_LAUNCHES[0], (1, 2, 1, 0, *shape)]}


def second(argument: tuple[int, ...]) -> dict[str, Any]:
    """The sample with another second argument, one of four bytes."""
    return {"params": [CUDA_PARAMS[0], argument, CUDA_PARAMS[2]]}


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (shaped(0, 1, 1, 32, 1, 1, 0), r"launch 1 has a grid of \[0 1 1\]"),
        (shaped(2**31, 1, 1, 32, 1, 1, 0), "launch 1 has a grid of"),
        (shaped(1, 65536, 1, 32, 1, 1, 0), "launch 1 has a grid of"),
        (shaped(1, 1, 65536, 32, 1, 1, 0), "launch 1 has a grid of"),
        (shaped(1, 1, 1, 0, 1, 1, 0), r"blocks of \[0 1 1\]"),
        (shaped(1, 1, 1, 1025, 1, 1, 0), "blocks of"),
        (shaped(1, 1, 1, 1, 1, 65, 0), "blocks of"),
        (shaped(1, 1, 1, 32, 33, 1, 0), "blocks of"),
        (shaped(1, 1, 1, 2**31, 2**31, 4, 0), "blocks of"),
        (shaped(1, 1, 1, 32, 1, 1, 1), "and 1 bytes of shared memory"),
        (second((CONSTANT, 1, 2**32, 0)), "more than 4 bytes hold"),
        (second((0, 1, 0, 0)), r"argument 1 of launch 0 \(add\) is byte 0 of kv"),
        ({"edges": [(1, 1, 1, 0, 1, 0)]}, "edge 0 leads from launch 1 to 1 of 2"),
        ({"edges": [(1, 0, 1, 0, 1, 0)]}, "edge 0 leads from launch 1 to 0 of 2"),
        ({"edges": [(0, 2, 1, 0, 1, 0)]}, "edge 0 leads from launch 0 to 2 of 2"),
        ({"edges": [(0, 1, 0, 0, 1, 0)]}, "edge 0 is of type 1, port 0 to 0"),
        ({"edges": [(0, 1, 1, 0, 0, 0)]}, "edge 0 is of type 0, port 1 to 0"),
        ({"edges": [(0, 1, 1, 1, 1, 0)]}, "edge 0 is of type 1, port 1 to 1"),
        ({"edges": [(0, 1, 1, 0, 2, 0)]}, "edge 0 is of type 2"),
        ({"edges": [(0, 1, 1, 0, 1, 256)]}, "edge 0 is of type 1"),
        ({"edges": EDGES * 2, "header": CUDA_HEADER | {"edges": 2}}, "edge 1 leads from launch 0 to 1 of 2"),
        ({"header": CUDA_HEADER | {"edges": 0}}, "tables of"),
    ],
    ids=str,
)
def test_a_graph_that_no_gpu_could_run_is_refused(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(BundleCorrupt, match=f"^x: .*{words}.*; rebuild the bundle"):
        decode(cuda_file(**changes), "x")


def test_edges_belong_to_launches_on_a_gpu() -> None:
    with pytest.raises(BundleCorrupt, match=r"launches without blocks have no .* edges"):
        decode(file(HEADER | {"edges": 1}, edges=EDGES), "x")


@given(programs(), st.data())
def test_a_program_with_other_tables_is_refused_or_still_inside(program: Program, data: st.DataObject) -> None:
    """Any word of a table replaced by any other: what passes stays inside its regions, kernels and launches."""
    tables = {name: getattr(program, name).copy() for name in ("launches", "params", "edges")}
    words = tables[data.draw(st.sampled_from([name for name, table in tables.items() if len(table)]))].view("<u4")
    words[data.draw(st.integers(0, len(words) - 1))] = data.draw(st.integers(0, 2**32 - 1) | st.integers(0, 3))
    try:
        read = decode(encode(replace(program, **tables)), "x")
    except BundleCorrupt:
        return
    for launch in read.launches.tolist():
        which, first, count, *_ = launch
        assert len(read.kernels[which].param_sizes) == count and first + count <= len(read.params)
    for region, _, value, extent in read.params.tolist():
        assert region == CONSTANT or value + extent <= read.regions[region].nbytes
    for source, target, *_ in read.edges.tolist():
        assert source < target < len(read.launches)


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
