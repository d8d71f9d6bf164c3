"""Parts of a tiny DFlash2 drafter, traced, lowered for a GPU and interpreted, each by itself over given tensors.

Around the rows of a pass stands what no kernel may follow, in the caches NaN wherever no row sees.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from tandem.artifacts.io import DraftGeometry, Geometry, IoLayout
from tandem.compile.assembly import Assembly, Launch, Operand
from tandem.compile.cuda.lowering import CudaLowering
from tandem.compile.models import dflash2
from tandem.compile.models.dflash2_config import resolve_drafter
from tandem.compile.models.rope import rope_tables
from tandem.compile.trace import BLOCKS, LANES, OUTPUTS, PAGES, ROWS, Part, export_part
from tandem.kernels.cuda.table import KERNELS
from tests.compile.cuda.interpreted import interpret
from tests.compile.models import dflash2_oracle as oracle
from tests.kernels.cuda.drafting import Blocks, normal

SPEC = resolve_drafter(oracle.TINY)
G, D, H, SIZE = SPEC.num_key_value_heads, SPEC.head_dim, SPEC.hidden_size, SPEC.block_size
BUCKET, CONTEXT, TILE = 16, 256, 64
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}
ANCHORS = [(0, 70), (2, 4)]
BLOCKS_OF = Blocks.of(ANCHORS, SIZE)
NUM_ROWS = len(BLOCKS_OF.lane)


def layout(compute: str) -> IoLayout:
    plane = G, D * DTYPES[compute].itemsize
    page = 2 * TILE * plane[0] * plane[1]
    drafter = DraftGeometry(128, SPEC.tap_width, page, (plane, plane), SPEC.selector_top_k)
    return IoLayout(Geometry(CONTEXT, SPEC.vocab_size, 64, 32, 3, TILE, page, (plane, plane), drafter=drafter))


def lowering(compute: str, rows: int) -> CudaLowering:
    assembly = Assembly({name: kernel.signature for name, kernel in KERNELS.items()})
    return CudaLowering(assembly, layout(compute), rows=rows, context=CONTEXT, layers=1, compute=compute)


class Traced:
    """A part with random weights, in float64 and as `compute` stores it."""

    def __init__(self, make: Any, compute: str, *meta: object) -> None:
        with torch.device("meta"):
            self.part: Part = export_part(make(SPEC), *meta)
            self.exact: nn.Module = make(SPEC)
        self.compute, self.weights = compute, dict[str, Tensor]()
        for seed, (name, parameter) in enumerate(self.exact.named_parameters()):
            spread = 0.3 * normal(*parameter.shape, seed=seed)
            self.weights[name] = spread.to(DTYPES[compute]) if spread.dim() == 2 else 1 + spread
        cast = {name: weight.double() for name, weight in self.weights.items()}
        self.exact.load_state_dict(cast, assign=True)

    def run(self, given: dict[str, tuple[Tensor, str]], memory: Tensor | None) -> tuple[list[Tensor], list[Launch]]:
        """What the launches make of `given`, tensors and what counts their rows; and the launches.

        `memory` [pages, 2, G, TILE, D] are K and V.
        """
        low = lowering(self.compute, BUCKET)
        counts = torch.zeros(16, dtype=torch.int32)
        counts[:2] = torch.tensor([NUM_ROWS, len(BLOCKS_OF.slots)])
        regions = {"io": torch.zeros(low.io.nbytes, dtype=torch.uint8)}
        regions["io"][low.io.fields["counts"].offset :][: counts.nbytes] = counts.view(torch.uint8)
        operands = {}
        for name, (tensor, count) in {**given, **{name: (w, "") for name, w in self.weights.items()}}.items():
            regions[name] = tensor.contiguous().flatten().view(torch.uint8).clone()
            traced = {"rows": ROWS, "outputs": OUTPUTS, "": tensor.shape[0]}[count]
            dtype = {torch.float32: "fp32", torch.bfloat16: "bf16", torch.int32: "int32"}[tensor.dtype]
            shape = (traced, *tensor.shape[1:])
            operands[name] = Operand(name, 0, tensor.nbytes, shape, tensor[0].numel(), count, dtype)
        if memory is not None:
            regions["draft_kv"] = memory.flatten().view(torch.uint8)
            plane = G * TILE * D * memory.itemsize
            for i, (name, shape) in enumerate({"k_cache": (0, G, D, TILE), "v_cache": (0, G, TILE, D)}.items()):
                operands[name] = Operand("draft_kv", i * plane, plane, shape, dtype=self.compute)
        results = [self._result(i, value) for i, value in enumerate(self._returned())]
        for result in results:
            assert isinstance(result.place, str)
            regions[result.place] = torch.full((result.extent,), 0xFF, dtype=torch.uint8)
        low.lower(self.part, operands, results)
        scratch = low.assembly.plan_scratch([True] * len(low.assembly.launches))
        regions["scratch"] = torch.full((scratch,), 0xFF, dtype=torch.uint8)
        for launch in low.assembly.launches:
            interpret(launch, regions)
        live = {"rows": NUM_ROWS, "outputs": len(BLOCKS_OF.slots)}
        found = [
            regions[str(result.place)].view(DTYPES.get(result.dtype, torch.int32)).view(BUCKET, *result.shape[1:])
            for result in results
        ]
        return [x[: live[result.count]] for x, result in zip(found, results, strict=True)], list(low.assembly.launches)

    def _returned(self) -> list[Tensor]:
        """Of each output its traced value."""
        (output,) = (node for node in self.part.graph.nodes if node.op == "output")
        return [node.meta["val"] for node in output.args[0] if node is not None]

    @staticmethod
    def _result(number: int, traced: Tensor) -> Operand:
        shape, width = tuple(traced.shape), traced[0].numel()
        dtype = "int32" if traced.dtype == torch.int32 else "fp32"
        return Operand(
            f"result {number}", 0, 4 * BUCKET * width, shape, width, {ROWS: "rows", OUTPUTS: "outputs"}[shape[0]], dtype
        )


def poisoned(x: Tensor) -> Tensor:
    """`x` and what stands in the bucket's other rows."""
    held = torch.full((BUCKET, *x.shape[1:]), 1 << 30 if x.dtype == torch.int32 else torch.nan, dtype=x.dtype)
    held[: len(x)] = x
    return held


class Memory:
    """One layer's K and V of three lanes, as a kernel reads them and as the definitions do."""

    def __init__(self, compute: str, window: int = SPEC.sliding_window, behind: int = 0) -> None:
        """Holds less than `window` positions before each anchor, and `behind` from it on."""
        blocks = (70 + SIZE) // TILE + 1
        self.held = torch.full((3 * blocks + 1, 2, G, TILE, D), torch.nan, dtype=DTYPES[compute])
        self.table = torch.arange(3 * blocks, dtype=torch.int32).view(blocks, 3).T.contiguous()
        for lane, anchor in ANCHORS:
            for at in range(max(0, anchor - window + 1), anchor + behind):
                page, place = int(self.table[lane, at // TILE]), at % TILE
                self.held[page, :, :, place] = normal(2, G, D, seed=97 * at + lane).to(self.held.dtype)

    def exact(self) -> tuple[Tensor, Tensor]:
        held = self.held.double()
        return held[:, 0].transpose(2, 3).contiguous(), held[:, 1].contiguous()


def inputs(memory: Memory, exact: bool = False) -> Any:
    tables = (torch.from_numpy(table) for table in rope_tables(SPEC.rope, D, 128))
    cos, sin = (table.double() if exact else table for table in tables)
    b = BLOCKS_OF
    return dflash2.Pass(b.position, b.lane, b.position, b.prefix, memory.table, cos, sin)


def meta_inputs() -> Any:
    def ids(*shape: int) -> Tensor:
        return torch.empty(shape, dtype=torch.int32, device="meta")

    table = torch.empty(128, D // 2, device="meta")
    return dflash2.Pass(ids(ROWS), ids(ROWS), ids(ROWS), ids(ROWS), ids(LANES, BLOCKS), table, table.clone())


def meta_caches(compute: str) -> tuple[Tensor, Tensor]:
    shapes = (PAGES, G, D, TILE), (PAGES, G, TILE, D)
    return tuple(torch.empty(shape, dtype=DTYPES[compute], device="meta") for shape in shapes)  # type: ignore[return-value]


def bound(memory: Memory) -> dict[str, tuple[Tensor, str]]:
    given = inputs(memory)._asdict()
    rows = {name: (poisoned(given[name]), "rows") for name in ("position", "lane", "slot", "prefix")}
    blocks = layout("fp32").geometry.blocks_per_lane
    table = torch.full((3, blocks), 1 << 30, dtype=torch.int32)
    table[:, : memory.table.shape[1]] = memory.table
    return rows | {"block_table": (table, ""), "cos": (given["cos"], ""), "sin": (given["sin"], "")}
