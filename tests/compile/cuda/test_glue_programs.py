"""Programs with glue as they are written down: each kernel compiled once, its operands where they lie, full edges."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import contextmanager
from dataclasses import replace
from hashlib import sha256
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from tandem.artifacts.program import CONSTANT, FULL, PROGRAMMATIC, Program, decode, encode
from tandem.compile.assembly import Buffer
from tandem.compile.cuda import glue_compile, programs
from tandem.compile.cuda.check import stretches
from tandem.compile.cuda.entries import Shape, shapes
from tandem.compile.cuda.glue import Run, steps
from tandem.compile.cuda.glue_compile import GlueLaunch
from tandem.compile.cuda.glue_kernel import GlueKernel, compile_kernels
from tandem.compile.cuda.programs import Lowered, encode_program
from tandem.compile.cuda.target import CudaTarget
from tandem.compile.progress import Progress
from tandem.compile.trace import ROWS, export_part
from tandem.errors import LoweringError
from tandem.kernels import linear
from tests.artifacts.cuda_sample import GPU
from tests.compile.cuda import gated, lowered
from tests.compile.cuda.conftest import Compiler
from tests.compile.cuda.gated import BUCKETS, ORDER, Buckets, glue_operands, kind
from tests.compile.cuda.lowered import Function, fake


@pytest.fixture(params=BUCKETS)
def low(request: pytest.FixtureRequest, buckets: Buckets) -> Lowered:
    return buckets["bf16", request.param]


Calls = list[tuple[Run, int, Mapping[str, torch.dtype]]]


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Calls:
    """What is asked of the compiler. What stands for it makes two kernels of a run with three inputs, else one."""
    asked: Calls = []

    def compile_run(run: Run, rows: int, dtypes: Mapping[str, torch.dtype]) -> list[GlueLaunch]:
        asked.append((run, rows, dtypes))
        names = [node.name for node in (*run.inputs, *run.outputs)]
        constants = (1000 + rows).to_bytes(4, "little"), bytes(8), bytes(8)
        return [
            GlueLaunch(f"triton_{i}_{rows}", f"{run.outputs} {i} {rows}".encode(), (rows, 1, 1), (64, 1, 1), 16 * i,
                       (*names, *constants))
            for i in range(2 if len(run.inputs) == 3 else 1)
        ]  # fmt: skip

    @contextmanager
    def device(index: int) -> Any:
        assert index == GPU.index
        yield

    monkeypatch.setattr(glue_compile, "compile_run", compile_run)
    monkeypatch.setattr(torch.cuda, "device", device)
    return asked


def written(low: Lowered) -> tuple[Program, dict[str, bytes]]:
    """The program through its file's bytes and their checks; and its cubins."""
    cubins = {}

    def add(data: bytes) -> str:
        name = sha256(data).hexdigest()
        cubins[name] = data
        return name

    glue = compile_kernels(low.glue.values(), GPU.index)
    program = encode_program(low, {variant: fake(variant) for variant in low.variants()}, add, glue)
    return decode(encode(program), "x"), cubins


def symbols(program: Program) -> list[str]:
    return [program.kernels[kernel].symbol for kernel in program.launches["kernel"]]


def test_a_program_has_all_kernels_of_its_runs_in_order(calls: Calls, buckets: Buckets) -> None:
    program, cubins = written(buckets["bf16", 8])
    wanted = [[f"triton_{j}_8" for j in range(2 if i == 2 else 1)] if name == "glue" else [name]
              for i, name in enumerate(ORDER)]  # fmt: skip
    assert symbols(program) == [symbol for group in wanted for symbol in group]
    for kernel, launch in zip((program.kernels[k] for k in program.launches["kernel"]), program.launches, strict=True):
        assert sha256(cubins[kernel.binary]).hexdigest() == kernel.binary
        if kernel.symbol.startswith("triton"):
            assert (tuple(launch["grid"]), tuple(launch["block"])) == ((8, 1, 1), (64, 1, 1))
            assert launch["shared"] == kernel.shared == (16 if kernel.symbol.startswith("triton_1") else 0)
    assert len(cubins) == len(buckets["bf16", 8].variants()) + 5


def test_arguments_are_operands_where_they_lie_and_constants(calls: Calls, low: Lowered) -> None:
    program, _ = written(low)
    operands = iter([run for i, run in enumerate(glue_operands(low)) for _ in range(2 if i == 0 else 1)])
    rows = iter([kernel.rows for i, kernel in enumerate(low.glue.values()) for _ in range(2 if i == 0 else 1)])
    names = [region.name for region in program.regions]
    for symbol, launch in zip(symbols(program), program.launches, strict=True):
        if symbol.startswith("triton"):
            run, count = next(operands), next(rows)
            first = int(launch["first_param"])
            params = program.params[first : first + int(launch["num_params"])]
            for param, operand in zip(params, run.values(), strict=False):
                base = operand.place.offset if isinstance(operand.place, Buffer) else 0
                region = "scratch" if isinstance(operand.place, Buffer) else operand.place
                assert (names[param["region"]], param["value"]) == (region, base + operand.offset)
                assert param["alignment"] >= 16
            rest = params[len(run) :]
            assert (rest["region"] == CONSTANT).all() and rest["value"].tolist() == [1000 + count, 0, 0]
            assert program.kernels[launch["kernel"]].param_sizes == (8,) * len(run) + (4, 8, 8)
    assert next(operands, None) is None


def test_edges_beside_glue_are_full_ones(calls: Calls, low: Lowered) -> None:
    program, _ = written(low)
    made = [symbol.startswith("triton") for symbol in symbols(program)]
    wanted = [
        (i, i + 1, 0, 0, FULL) if before or after else (i, i + 1, 1, 0, PROGRAMMATIC)
        for i, (before, after) in enumerate(pairwise(made))
    ]
    fields = ("source", "target", "from_port", "to_port", "type")
    assert [tuple(int(edge[name]) for name in fields) for edge in program.edges] == wanted
    assert {edge[-1] for edge in wanted} == {FULL, PROGRAMMATIC}


def test_each_kernel_is_compiled_once_for_its_rows_and_types(calls: Calls, buckets: Buckets) -> None:
    heard: list[None] = []
    kernels = [kernel for low in buckets.values() for kernel in low.glue.values()]
    done = compile_kernels(kernels, GPU.index, lambda: heard.append(None))
    # In fp32 the first and third run are those of bf16; the last one is for 32 outputs in two buckets.
    assert len(calls) == len(heard) == len(done) == 4 * 4 - 1 + 2 * 4 - 1
    assert [rows for _, rows, _ in calls[:8]] == [1, 1, 1, 1, 8, 8, 8, 8]


def test_equal_formulas_are_one_kernel_whatever_their_nodes_are_called(calls: Calls) -> None:
    def twice(i: Any, w: Any) -> Any:
        first = linear(torch.sigmoid(i.x) * w.vector, w.square, None)
        return linear(torch.sigmoid(first) * w.vector, w.square, None)

    found = lowered.launches(twice)
    assert [kind(launch.kernel) for launch in found] == ["glue", "linear", "glue", "linear"]
    assert found[0].kernel == found[2].kernel and found[0].arguments["x0"] != found[2].arguments["x0"]
    others: list[Function] = [
        lambda i, w: linear(torch.sigmoid(i.x) * i.x, w.square, None),
        lambda i, w: linear(torch.sigmoid(i.x) * (1 + w.vector), w.square, None),
        lambda i, w: torch.sigmoid(i.x) * w.vector,  # of another type
        *(lambda i, w, by=by: torch.sigmoid(i.x) * by for by in (2.0, 3.0)),
    ]
    names = {lowered.launches(other)[0].kernel for other in others}
    names |= {lowered.launches(twice, rows)[0].kernel for rows in (8, 16)}
    assert len(names) == 7 and found[0].kernel in names


def test_what_operands_are_tells_kernels_apart() -> None:
    def kernel(width: int, dtype: torch.dtype) -> GlueKernel:
        with torch.device("meta"):
            part = export_part(Sum(), *(torch.empty(ROWS, width, dtype=dtype) for _ in range(2)))
        (run,) = (step for step in steps(part) if isinstance(step, Run))
        return GlueKernel.of(run, 8, {node.name: dtype for node in (*run.inputs, *run.outputs)})

    made = [kernel(32, torch.float32), kernel(16, torch.float32), kernel(32, torch.bfloat16)]
    assert len(set(made)) == len({one.name for one in made}) == 3 and made[0] == kernel(32, torch.float32)
    assert [(param.name, param.kind) for param in made[0].signature] == [("x0", "in"), ("x1", "in"), ("y0", "out")]


def test_a_compiled_kernel_is_known_by_parameters(calls: Calls, buckets: Buckets) -> None:
    for kernel, launches in compile_kernels(buckets["bf16", 8].glue.values(), GPU.index).items():
        taken = [param.name for param in kernel.signature]
        assert all([a for a in launch.arguments if isinstance(a, str)] == taken for launch in launches)


def test_launches_between_glue_are_held_against_captures_part_by_part(calls: Calls, low: Lowered) -> None:
    program, _ = written(low)
    parts = list(stretches(low, program))
    own = [launch for launch in low.launches if launch.kernel not in low.glue]
    assert [launch for listed, _ in parts for launch in listed] == own
    assert [len(listed) for listed, _ in parts] == [2, 1, 1, 1, 3]
    whole = np.concatenate([part.launches for _, part in parts])
    ours = [not symbol.startswith("triton") for symbol in symbols(program)]
    assert (whole == program.launches[ours]).all()
    for listed, part in parts:
        count = len(listed)
        assert part.edges["source"].tolist() == list(range(count - 1))
        assert part.edges["target"].tolist() == list(range(1, count))
        assert (part.edges["type"] == PROGRAMMATIC).all() and part.params is program.params


def test_a_program_that_lost_glue_is_not_what_was_lowered(calls: Calls, low: Lowered) -> None:
    program, _ = written(low)
    kept = [i for i, symbol in enumerate(symbols(program)) if not symbol.startswith("triton")]
    with pytest.raises(LoweringError, match="the program has 1 stretches without glue, 5 were lowered"):
        list(stretches(low, replace(program, launches=program.launches[kept], edges=program.edges[:0])))


class Sum(nn.Module):
    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return x + y


class Written:
    """What a build writes, by name."""

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}
        self.cubins: set[bytes] = set()

    def add(self, name: str, data: bytes) -> None:
        self.files[name] = data

    def add_cubin(self, data: bytes) -> str:
        self.cubins.add(data)
        return sha256(data).hexdigest()


def test_a_build_compiles_glue_beside_its_operators_and_writes_both(
    calls: Calls, compiler: Compiler, buckets: Buckets, monkeypatch: pytest.MonkeyPatch
) -> None:
    def lower(composer: Any, shape: Shape) -> Lowered:
        return replace(buckets["bf16", min(rows for rows in BUCKETS if rows >= min(shape.rows, 64))], shape=shape)

    monkeypatch.setattr(programs, "lower", lower)
    writer, progress, composer = Written(), Progress(quiet=True), SimpleNamespace(geometry=gated.IO.geometry)
    records = list(CudaTarget(GPU)._programs(writer, composer, progress))  # type: ignore[arg-type]
    assert len(writer.files) == len(list(shapes(gated.IO.geometry))) == len(compiler.checked)
    assert {record.program for record in records} == writer.files.keys()
    assert len(calls) == 4 * 4 - 1  # outputs of 32 rows and of 64 are as many
    held = {kernel.binary for data in writer.files.values() for kernel in decode(data, "x").kernels}
    assert held == {sha256(data).hexdigest() for data in writer.cubins}
