"""A program held to a captured graph: the honest one passes, each altered one is refused by node and field."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from tandem.artifacts.program import CONSTANT, EDGE, LAUNCH, PARAM, Kernel, Program, Region
from tandem.compile.cuda.capture import Launch, _call, compare, known_kernel, place
from tandem.compile.cuda.graph_reader import read_graph
from tandem.errors import LoweringError
from tandem.kernels.cuda.launch import TritonKernel, work
from tandem.kernels.cuda.norm import rms_norm, rms_norm_work
from tandem.kernels.signature import parse
from tests.compile.cuda.recorded import GLUE, KNOWN, NORM, SPANS, chain

BASES = {span.name: span.base for span in SPANS}
IO, SCRATCH = 0, 1


def program() -> Program:
    """What `recorded.chain` shows, written by hand."""
    pointers = [
        *((SCRATCH, 0), (IO, 0x40), (SCRATCH, 0x800), (CONSTANT, 0), (CONSTANT, 0)),
        *((SCRATCH, 0x800), (SCRATCH, 0xC00), (CONSTANT, 96), (CONSTANT, 0), (CONSTANT, 0)),
        *((SCRATCH, 0xC00), (IO, 0x40), (SCRATCH, 0), (CONSTANT, 0), (CONSTANT, 0)),
    ]
    params = [(region, 1 if region == CONSTANT else 16, value, 0) for region, value in pointers]
    launches = [
        (0, 0, 5, 0, (4, 2, 1), (128, 1, 1), 512),
        (1, 5, 5, 0, (3, 1, 1), (256, 1, 1), 0),
        (0, 10, 5, 0, (4, 2, 1), (128, 1, 1), 512),
    ]
    edges = [(0, 1, 0, 0, 0, [0] * 5), (1, 2, 1, 0, 1, [0] * 5)]
    return Program(
        (Kernel(NORM.digest, "norm", (8, 8, 8, 8, 8), 512), Kernel(GLUE.digest, "glue", (8, 8, 4, 8, 8), 0)),
        (Region("io", 0x100), Region("scratch", 0x1000)),
        np.array(launches, LAUNCH),
        np.array(params, PARAM),
        np.array(edges, EDGE),
    )


def changed(table: str, row: int, **fields: object) -> Program:
    honest = program()
    rows = getattr(honest, table).copy()
    for name, value in fields.items():
        rows[name][row] = value
    return replace(honest, **{table: rows})


def check(written: Program) -> None:
    compare(*read_graph(chain(), KNOWN, SPANS), written, BASES)


def test_the_honest_program_passes():
    check(program())


@pytest.mark.parametrize(
    ("written", "words"),
    [
        (replace(program(), launches=program().launches[:2]), "the program has 2 launches, 3 nodes were captured"),
        (replace(program(), edges=program().edges[:1]), r"node 2: edge from node 1 .* is None in the program"),
        (replace(program(), edges=program().edges[[0, 1, 1]]), None),
        (changed("edges", 1, type=0, from_port=0), r"node 2: edge from node 1 .* is \{\(0, 0, 0\)\} in the"),
        (changed("edges", 0, source=0, target=2), "node 1: edge from node 0 .* is None"),
        (changed("launches", 1, grid=(2, 1, 1)), r"node 1 \(kernel glue\): grid is \(2, 1, 1\) in the program"),
        (changed("launches", 0, block=(64, 1, 1)), r"node 0 \(kernel norm\): block is"),
        (changed("launches", 0, shared=0), r"node 0 \(kernel norm\): shared bytes is 0 .* and 512"),
        (changed("launches", 0, kernel=1), "node 0 .*: symbol is glue"),
        (changed("launches", 2, num_params=4), "node 2 .*: number of arguments is 4"),
        (changed("params", 2, value=0x840), r"node 0 \(kernel norm\): argument 2 is \('scratch', 2112\) .* 2048"),
        (changed("params", 2, region=IO), r"argument 2 is \('io', 2048\)"),
        (changed("params", 2, region=CONSTANT, value=0x20800), r"argument 2 is \(None, 133120\)"),
        (changed("params", 7, value=97), r"node 1 \(kernel glue\): argument 2 is \(None, 97\) .* \(None, 96\)"),
        (changed("params", 14, region=SCRATCH), "node 2 .*: argument 4, Triton's own, is"),
        (replace(program(), kernels=(replace(program().kernels[0], binary=GLUE.digest), program().kernels[1])),
         "cubin is"),
        (replace(program(), kernels=(replace(program().kernels[0], param_sizes=(8, 4, 8, 8, 8)), program().kernels[1])),
         r"node 0 \(kernel norm\): bytes of arguments is \(8, 4"),
    ],
)  # fmt: skip
def test_altered_programs_are_refused_by_name(written, words):
    if words is None:
        return check(written)  # an edge said twice says no more
    with pytest.raises(LoweringError, match=words):
        check(written)


def test_another_base_than_captured_is_refused():
    with pytest.raises(LoweringError, match=r"node 0 .*: address of argument 0 is"):
        compare(*read_graph(chain(), KNOWN, SPANS), program(), BASES | {"scratch": 0x30000})


def test_an_alignment_that_the_captured_address_lacks_is_refused():
    with pytest.raises(LoweringError, match=r"node 0 .*: argument 1 modulo its alignment is 0 .* and 64"):
        check(changed("params", 1, alignment=128))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int32])
def test_places_begin_where_they_should(dtype):
    regions = {"io": torch.zeros(103, dtype=torch.uint8)}
    tensor = place(regions, "io", 24, dtype)
    assert (tensor.dtype, tensor.dim()) == (dtype, 1)
    assert tensor.data_ptr() == regions["io"].data_ptr() + 24
    assert tensor.numel() == 79 // dtype.itemsize


@pytest.mark.parametrize("offset", [-4, 2, 100, 104])
def test_places_outside_or_between_elements_are_refused(offset):
    with pytest.raises(LoweringError, match=f"offset {offset} in io of 103 bytes"):
        place({"io": torch.zeros(103, dtype=torch.uint8)}, "io", offset, torch.float32)


class Recorder:
    """Stands for a jitted function: notes how it is launched."""

    def __init__(self) -> None:
        self.seen: list[tuple] = []

    def __getitem__(self, grid):
        return lambda *pointers, **options: self.seen.append((grid, pointers, options))

    def warmup(self, *pointers, grid, **options):
        self.seen.append((grid, pointers, options))


def test_launches_pass_pointers_in_the_signatures_order():
    function, x = Recorder(), torch.zeros(4)
    launch = Launch(
        TritonKernel("k", function, parse("<x <bias >y")),
        work((3,), num_warps=8, num_stages=2, WIDTH=4),
        {"y": x, "x": x, "bias": None},
    )
    _call(launch, warmup=True)
    _call(launch)
    warm, real = function.seen
    assert warm == real
    assert real[:2] == ((3, 1, 1), (x, None, x))
    options = {"WIDTH": 4, "PDL": True, "num_warps": 8, "num_stages": 2, "launch_pdl": True, "enable_fp_fusion": False}
    assert real[2] == options


def test_a_kernel_is_known_by_its_signature_and_binary():
    names = {"x": "*fp32", "weight": "*fp32", "count": "*i32", "y": "*bf16"}
    constants = {**dict(rms_norm_work(4, 1, 96, 1e-5, 96, 96).constants), "PDL": True, "row": None}
    source = ASTSource(rms_norm.function, names | dict.fromkeys(constants, "constexpr"), constants)
    options = {"num_warps": 1, "enable_fp_fusion": False}
    compiled = triton.compile(source, target=GPUTarget("cuda", 90, 32), options=options)
    known = known_kernel(compiled)
    assert (known.symbol, known.types) == ("rms_norm", ("*fp32", "*fp32", "*i32", "*bf16"))
    assert known.cubin[:4] == b"\x7fELF"
