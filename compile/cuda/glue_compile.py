"""Makes launches of a run of glue: Inductor compiles it for one row count, CUDA captures it, the graph is read back.

Needs a GPU. What Inductor could choose by time or by machine is switched off, and so is all contraction of products
and sums: a row has the same bits at every row count. Knows nothing of programs.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import triton
from torch import Tensor

from tandem.compile.cuda.glue import Run
from tandem.compile.cuda.graph_reader import EdgeRecord, KnownKernel, NodeRecord, Span, read_graph
from tandem.compile.cuda.graph_source import DriverGraph, Grid
from tandem.errors import LoweringError

ALIGNMENT = 16
"""What every operand's address must be a multiple of: the kernels are compiled for it."""
FULL_EDGE = (0, 0, 0)
MANY = 1 << 20
OPTIONS: dict[str, str | int | bool] = {
    "triton.cudagraphs": False,
    "cpp_wrapper": False,
    "combo_kernels": False,
    "max_autotune_gemm_backends": "TRITON",
    "triton.unique_kernel_names": True,
    "triton.enable_pdl": False,
    # One configuration, by rule and not by stopwatch.
    "max_autotune": False,
    "max_autotune_pointwise": False,
    "coordinate_descent_tuning": False,
    "triton.autotune_pointwise": False,
    # No kernel comes from elsewhere than this process: `Kernels` must see each of them.
    "fx_graph_cache": False,
    "compile_threads": 1,
    "use_static_cuda_launcher": False,
    # One kernel computes an output from the inputs: what lies between would have no place in a program.
    "realize_reads_threshold": MANY,
    "realize_opcount_threshold": MANY,
    "realize_acc_reads_threshold": MANY,
    "allow_buffer_reuse": False,
    "inplace_buffers": False,
    # Rounds where the traced types say so, and fuses no multiply with an add.
    "emulate_precision_casts": True,
}
"""Of torch.compile with Inductor, known to 2.11 and later."""


@dataclass(frozen=True, slots=True)
class GlueLaunch:
    """A launch, to be appended to a program in order.

    An argument is an operand's name (a pointer to its first element, a multiple of ALIGNMENT) or constant bytes.
    `edge` is (from_port, to_port, type) of the edges into and out of it: Inductor's kernels wait for nobody, so it
    starts when all before it has ended, and what follows when it has.
    """

    symbol: str
    cubin: bytes
    grid: Grid
    block: Grid
    shared: int
    arguments: tuple[str | bytes, ...]
    edge: tuple[int, int, int] = FULL_EDGE


def compile_run(run: Run, rows: int, dtypes: Mapping[str, torch.dtype] | None = None) -> list[GlueLaunch]:
    """Launches of `run` for exactly `rows` rows on the current GPU.

    `dtypes` are those of operands, by name, that are not kept in their traced type. Raises LoweringError naming the
    kernel for anything but one Triton kernel behind another, each between operands alone.
    """
    kinds = {node.name: node.meta["val"].dtype for node in (*run.inputs, *run.outputs)} | dict(dtypes or {})
    inputs = [torch.zeros(run.shape(node, rows), dtype=kinds[node.name], device="cuda") for node in run.inputs]
    module = run.module(rows, kinds)
    compiled = torch.compile(module, backend="inductor", fullgraph=True, dynamic=False, options=dict(OPTIONS))
    kernels, graph = Kernels.watch(), torch.cuda.CUDAGraph(keep_graph=True)
    with torch.no_grad(), _triton_settings():
        compiled(*inputs)  # compiles, and loads what a capture could not
        torch.cuda.synchronize()
        with torch.cuda.graph(graph, capture_error_mode="thread_local"):
            outputs = compiled(*inputs)
    _check_outputs(run, outputs, rows, kinds)
    operands = zip((*run.inputs, *run.outputs), (*inputs, *outputs), strict=True)
    spans = [Span(node.name, tensor.data_ptr(), tensor.nbytes) for node, tensor in operands]
    records, edges = read_graph(DriverGraph(graph.raw_cuda_graph()), kernels.loaded, spans)
    return glue_launches(records, edges, {kernel.digest: kernel.cubin for kernel in kernels.loaded.values()})


def _check_outputs(run: Run, outputs: Sequence[Tensor], rows: int, dtypes: Mapping[str, torch.dtype]) -> None:
    for node, tensor in zip(run.outputs, outputs, strict=True):
        wanted, made = (run.shape(node, rows), dtypes[node.name]), (tuple(tensor.shape), tensor.dtype)
        if made != wanted or not tensor.is_contiguous():
            raise LoweringError(f"Inductor makes {node.name} {made} with strides {tensor.stride()}, wanted {wanted}")


def glue_launches(
    records: Sequence[NodeRecord], edges: Sequence[EdgeRecord], cubins: Mapping[str, bytes]
) -> list[GlueLaunch]:
    """Launches of captured nodes, whose regions are the operands. `cubins` by their sha256."""
    chain = [EdgeRecord(i, i + 1, *FULL_EDGE) for i in range(len(records) - 1)]
    if not records or list(edges) != chain:
        raise LoweringError(f"Inductor's {len(records)} kernels are no chain of full edges ({list(edges)})")
    launches = []
    for i, record in enumerate(records):
        arguments: list[str | bytes] = []
        for j, argument in enumerate(record.arguments):
            if argument.offset:
                where = f"glue node {i} (kernel {record.symbol}), argument {j}"
                raise LoweringError(
                    f"{where} begins {argument.offset} bytes inside {argument.region}, not at its start"
                )
            arguments.append(argument.value if argument.region is None else argument.region)
        shape = (record.grid, record.block, record.shared)
        launches.append(GlueLaunch(record.symbol, cubins[record.cubin], *shape, tuple(arguments)))
    return launches


class Kernels:
    """Every Triton kernel that this process loads from the first `watch` on, by function handle."""

    _watching: Kernels | None = None

    def __init__(self) -> None:
        self.loaded: dict[int, KnownKernel] = {}
        self._compiled: dict[str, KnownKernel] = {}

    @classmethod
    def watch(cls) -> Kernels:
        """One for the whole process: Inductor compiles a kernel once, whichever run it belongs to."""
        if cls._watching is None:
            cls._watching = cls()
            cls._watching._listen()
        return cls._watching

    def _listen(self) -> None:
        before = triton.knobs.compilation.listener

        def compiled(**facts: Any) -> None:
            self.on_compiled(facts["src"], facts["metadata"], facts["metadata_group"])
            if before is not None:
                before(**facts)

        triton.knobs.compilation.listener = compiled
        triton.knobs.runtime.kernel_load_end_hook.add(self.on_loaded)

    def on_compiled(self, source: Any, metadata: Mapping[str, Any], files: Mapping[str, str]) -> None:
        """Triton's word that a kernel is compiled, or found in its cache on disk."""
        binaries = [path for name, path in files.items() if name.endswith(".cubin")]
        if len(binaries) == 1:
            types = tuple(str(kind) for kind in source.signature.values() if kind != "constexpr")
            kernel = KnownKernel(metadata["name"], Path(binaries[0]).read_bytes(), types)
            self._compiled[metadata["hash"]] = kernel

    def on_loaded(self, module: Any, function: Any, name: str, files: Mapping[str, str], hash: str) -> None:
        """Triton's word that a kernel is on the device."""
        if hash in self._compiled:
            self.loaded[int(function)] = self._compiled[hash]


@contextmanager
def _triton_settings() -> Iterator[None]:
    """No line info, and Triton's own assembler: Inductor would set torch's for the rest of the process."""
    compiler_config: Any = torch.compiler.config
    present = os.environ.get("TRITON_PTXAS_PATH")
    triton.knobs.compilation.disable_line_info = True
    os.environ["TRITON_PTXAS_PATH"] = triton.knobs.nvidia.ptxas.path
    try:
        with compiler_config.patch(force_disable_caches=True):
            yield
    finally:
        if present is None:
            del os.environ["TRITON_PTXAS_PATH"]
        else:
            os.environ["TRITON_PTXAS_PATH"] = present
