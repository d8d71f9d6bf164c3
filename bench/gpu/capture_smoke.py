"""`python3 -m bench.gpu.capture_smoke`: whether captures are read right here, with this torch, Triton and driver.

Two kernels of ours are written down as a program and captured: the honest program must pass, altered ones must not.
Glue is compiled, rebuilt as a graph at other addresses and compared with eager PyTorch. One line per check.
"""

from __future__ import annotations

import ctypes
import hashlib
import sys
from collections.abc import Callable
from ctypes import POINTER, byref, c_size_t, c_void_p
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor, nn

from tandem.artifacts.program import CONSTANT, EDGE, LAUNCH, PARAM, PROGRAMMATIC, Kernel, Program, Region
from tandem.compile.cuda.capture import Launch, check_program, place
from tandem.compile.cuda.glue import Run, steps
from tandem.compile.cuda.glue_compile import GlueLaunch, compile_run
from tandem.compile.cuda.graph_reader import read_graph
from tandem.compile.cuda.graph_source import DriverGraph, KernelParams, load_library
from tandem.compile.trace import ROWS, export_part
from tandem.driver import Driver
from tandem.errors import LoweringError
from tandem.kernels.cuda.build import Cubin, Pointer, Variant, compile_variant
from tandem.kernels.cuda.launch import TritonKernel, Work
from tandem.kernels.cuda.norm import rms_norm, rms_norm_work
from tandem.kernels.cuda.swiglu import swiglu, swiglu_work

TOKENS, WIDTH = 8, 96
NBYTES = {"weights": 4096, "io": 256, "scratch": 1 << 16}
TYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "int32": torch.int32}
Place = tuple[str, int, str]
Call = tuple[TritonKernel, Work, dict[str, Place | None]]


def calls() -> list[Call]:
    """A norm, and behind it a SwiGLU of what it made: each pointer as (region, offset, type), None if left out."""
    count, between, wide = ("io", 64, "int32"), ("scratch", 8192, "fp32"), 2 * WIDTH
    x, weight = ("scratch", 0, "fp32"), ("weights", 512, "fp32")
    normed: dict[str, Place | None] = {"x": x, "weight": weight, "row": None, "count": count, "y": between}
    gated: dict[str, Place | None] = {"x": between, "count": count, "y": ("scratch", 32768, "bf16")}
    return [
        (rms_norm, rms_norm_work(TOKENS, 1, wide, 1e-5, wide, wide), normed),
        (swiglu, swiglu_work(TOKENS, WIDTH, wide), gated),
    ]


def write(listed: list[Call]) -> Program:
    """The program of these calls, kernels compiled ahead of time."""
    names = list(NBYTES)
    major, minor = torch.cuda.get_device_capability()
    kernels, launches, params = [], [], []
    for number, (kernel, work, places) in enumerate(listed):
        given = [places[param.name] for param in kernel.signature]
        pointers = [at and Pointer(at[2], aligned=True) for at in given]
        cubin: Cubin = compile_variant(Variant.of(kernel.name, pointers, work), 10 * major + minor)
        kernels.append(Kernel(digest(cubin.data), cubin.symbol, cubin.param_sizes, cubin.shared))
        count, block = len(cubin.param_sizes), (cubin.threads, 1, 1)
        launches.append((number, len(params), count, 0, work.grid, block, cubin.shared))
        params += [(names.index(at[0]), 16, at[1], 4) for at in given if at]
        params += [(CONSTANT, 1, 0, 0)] * cubin.hidden
    edges = [(i, i + 1, 1, 0, PROGRAMMATIC, [0] * 5) for i in range(len(listed) - 1)]
    regions = tuple(Region(name, size) for name, size in NBYTES.items())
    return Program(tuple(kernels), regions, np.array(launches, LAUNCH), np.array(params, PARAM), np.array(edges, EDGE))


def digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def altered(honest: Program) -> dict[str, Program]:
    def change(table: str, row: int, field: str, value: object) -> Program:
        rows = getattr(honest, table).copy()
        rows[field][row] = value
        return replace(honest, **{table: rows})

    first, second = honest.kernels
    return {
        "a node missing": replace(honest, launches=honest.launches[:1], edges=honest.edges[:0]),
        "an edge lost": replace(honest, edges=honest.edges[:0]),
        "an edge made a full one": change("edges", 0, "type", 0),
        "another grid": change("launches", 1, "grid", (TOKENS - 1, 1, 1)),
        "a pointer moved": change("params", 0, "value", 4096),
        "a pointer in another region": change("params", 0, "region", 0),
        "another cubin": replace(honest, kernels=(replace(first, binary=digest(b"")), second)),
    }


def check_capture() -> None:
    regions = {name: torch.zeros(size, dtype=torch.uint8, device="cuda") for name, size in NBYTES.items()}
    launches = [
        Launch(kernel, work, {name: at and place(regions, at[0], at[1], TYPES[at[2]]) for name, at in places.items()})
        for kernel, work, places in calls()
    ]
    honest = write(calls())
    check_program(launches, regions, honest)
    print("PASS the program is what was captured: norm and SwiGLU, a programmatic edge between")
    for what, program in altered(honest).items():
        print(f"PASS {what}: {refused(lambda program=program: check_program(launches, regions, program))}")


def check_foreign() -> None:
    x = torch.ones(256, 256, device="cuda")
    x @ x
    graph = torch.cuda.CUDAGraph(keep_graph=True)
    with torch.cuda.graph(graph):
        x @ x
    print(f"PASS a library's product: {refused(lambda: read_graph(DriverGraph(graph.raw_cuda_graph()), {}, []))}")


def refused(action: Callable[[], object]) -> str:
    """The words of the refusal; an AssertionError where there is none."""
    try:
        action()
    except LoweringError as error:
        return str(error)
    raise AssertionError("not refused")


class Gate(nn.Module):
    """The glue of a gated layer."""

    def forward(self, gate: Tensor, x: Tensor, step: Tensor) -> Tensor:
        return torch.sigmoid(gate) * x + nn.functional.softplus(step)


def check_glue() -> None:
    with torch.device("meta"):
        part = export_part(Gate(), *(torch.empty(ROWS, WIDTH) for _ in range(3)))
    (run,) = (step for step in steps(part) if isinstance(step, Run))
    torch.manual_seed(0)
    inputs = [torch.randn(32, WIDTH, device="cuda") for _ in range(3)]
    eager = Gate()(*inputs)
    made = {rows: replay(run, compile_run(run, rows), [x[:rows].clone() for x in inputs], rows) for rows in (1, 8, 32)}
    torch.testing.assert_close(made[32], eager, rtol=1e-5, atol=1e-6)
    print(f"PASS glue rebuilt elsewhere is eager's: differs by {float((made[32] - eager).abs().max()):.1e} at most")
    assert torch.equal(made[1], made[32][:1]) and torch.equal(made[8], made[32][:8])
    print("PASS glue makes a row of the same bits in 1, 8 and 32 rows")
    again = compile_run(run, 8)
    assert again == compile_run(run, 8)
    print(f"PASS glue compiled twice is the same launch: {again[0].symbol}, grid {again[0].grid}, {len(again)} node")


def replay(run: Run, launches: list[GlueLaunch], inputs: list[Tensor], rows: int) -> Tensor:
    """Builds a graph of the launches over new tensors, runs it, returns the output."""
    (output,) = run.outputs
    y = torch.full(run.shape(output, rows), float("nan"), device="cuda")
    operands = {node.name: tensor.data_ptr() for node, tensor in zip((*run.inputs, output), (*inputs, y), strict=True)}
    driver = Driver()
    graph = driver.graph()
    nodes: list[c_void_p] = []
    modules = [driver.module(launch.cubin) for launch in launches]
    for launch, module in zip(launches, modules, strict=True):
        nodes.append(add_kernel(graph, nodes[-1:], driver.function(module, launch.symbol), launch, operands))
    executable, stream = driver.instantiate(graph), driver.stream()
    torch.cuda.synchronize()
    driver.launch(executable, stream)
    driver.synchronize(stream)
    return y


def add_kernel(
    graph: int, behind: list[c_void_p], function: int, launch: GlueLaunch, operands: dict[str, int]
) -> c_void_p:
    """A kernel node behind others by full edges, which the driver's older call makes."""
    words = [a if isinstance(a, bytes) else operands[a].to_bytes(8, "little") for a in launch.arguments]
    buffers = [ctypes.create_string_buffer(word, len(word)) for word in words]
    pointers = (c_void_p * len(buffers))(*map(ctypes.addressof, buffers))
    params = KernelParams(func=function, shared=launch.shared, params=ctypes.cast(pointers, POINTER(c_void_p)))
    params.grid[:], params.block[:] = launch.grid, launch.block
    node, before = c_void_p(), (c_void_p * len(behind))(*behind)
    code = load_library().cuGraphAddKernelNode_v2(
        byref(node), c_void_p(graph), before, c_size_t(len(behind)), byref(params)
    )
    assert code == 0, f"cuGraphAddKernelNode_v2: {code}"
    return node


def main() -> int:
    """Returns the exit code."""
    if not torch.cuda.is_available():
        print("error: no GPU that PyTorch can use", file=sys.stderr)
        return 1
    check_capture()
    check_foreign()
    check_glue()
    return 0


if __name__ == "__main__":
    sys.exit(main())
