"""Programs whose tables do not hold are refused in words: which launch, which argument, which edge."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tandem.artifacts.program import CONSTANT, Program, decode, encode
from tandem.errors import BundleCorrupt
from tests.artifacts.programs import (
    CUDA_HEADER,
    CUDA_LAUNCHES,
    CUDA_PARAMS,
    EDGES,
    HEADER,
    HOST,
    LAUNCHES,
    PARAMS,
    cuda_file,
    file,
    programs,
)


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
        (
            second((CONSTANT, 1, 2**32, 0)),
            "argument 1 of launch 0 .* is the constant 4294967296, which 4 bytes",
        ),
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
