"""Parts of a DFlash2 drafter lowered for a GPU and interpreted, against the same parts in float64; what is launched."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tandem.compile.assembly import Launch, Operand
from tandem.compile.models import dflash2
from tandem.compile.trace import OUTPUTS, ROWS, export_part
from tandem.errors import LoweringError
from tandem.kernels import block_attention, block_conv, linear
from tests.compile.cuda.draft_parts import (
    BLOCKS_OF,
    DTYPES,
    NUM_ROWS,
    SIZE,
    SPEC,
    TILE,
    D,
    G,
    H,
    Memory,
    Traced,
    bound,
    inputs,
    lowering,
    meta_caches,
    meta_inputs,
    poisoned,
)
from tests.compile.cuda.lowered import argument, constant, names
from tests.kernels.cuda.chain import chained_dots
from tests.kernels.cuda.drafting import normal

TOLERANCE = {"fp32": 1e-5, "bf16": 3e-2}
"""Of all of a result; in bf16 the interpreter cuts off where a GPU rounds."""


@pytest.fixture(autouse=True)
def _chained() -> Iterator[None]:
    with chained_dots():
        yield


def near(found: Tensor, wanted: Tensor, compute: str) -> None:
    assert found.isfinite().all()
    assert ((found.double() - wanted).norm() / wanted.norm()).item() < TOLERANCE[compute]


@pytest.mark.parametrize("compute", DTYPES)
@pytest.mark.parametrize("first", [True, False])
def test_a_block_is_the_model(compute: str, first: bool) -> None:
    with torch.device("meta"):
        h = torch.empty(ROWS, H)
    meta = (h, None if first else h.clone(), meta_inputs(), *meta_caches(compute))
    traced, memory = Traced(dflash2.Block, compute, *meta), Memory(compute)
    stream = {name: normal(NUM_ROWS, H, seed=i) for i, name in enumerate(["h", "delta"][: 1 if first else 2])}
    exact_caches = memory.exact()
    wanted = traced.exact(
        stream["h"].double(), None if first else stream["delta"].double(), inputs(memory, exact=True), *exact_caches
    )
    given = bound(memory) | {name: (poisoned(x), "rows") for name, x in stream.items()}
    found, launched = traced.run(given, memory.held)
    for one, other in zip(found, wanted, strict=True):
        near(one, other, compute)
    for part, exact in enumerate((exact_caches[0].transpose(2, 3), exact_caches[1])):
        written = ~exact.isnan()
        assert torch.equal(written, ~memory.held[:, part].isnan())
        near(memory.held[:, part][written], exact[written], compute)
    assert names(launched).count("block_conv") == 4


@pytest.mark.parametrize("compute", DTYPES)
def test_the_context_is_the_model(compute: str) -> None:
    with torch.device("meta"):
        x = torch.empty(ROWS, H)
    traced = Traced(dflash2.Context, compute, x, meta_inputs(), *meta_caches(compute))
    memory, rows = Memory(compute), normal(NUM_ROWS, H)
    exact_caches = memory.exact()
    traced.exact(rows.double(), inputs(memory, exact=True), *exact_caches)
    found, _launched = traced.run(bound(memory) | {"x": (poisoned(rows), "rows")}, memory.held)
    assert not found
    for part, exact in enumerate((exact_caches[0].transpose(2, 3), exact_caches[1])):
        written = ~exact.isnan()
        near(memory.held[:, part][written], exact[written], compute)


@pytest.mark.parametrize("compute", DTYPES)
def test_the_lattice_is_the_model(compute: str) -> None:
    with torch.device("meta"):
        h, token, output_row = torch.empty(ROWS, H), torch.empty(ROWS, dtype=torch.int32), torch.empty(OUTPUTS)
    meta = (h, h.clone(), meta_inputs(), token, output_row.to(torch.int32))
    traced, memory = Traced(dflash2.Lattice, compute, *meta), Memory(compute)
    stream = {name: normal(NUM_ROWS, H, seed=i) for i, name in enumerate(("h", "delta"))}
    tokens = torch.randint(0, 60, (NUM_ROWS,), dtype=torch.int32, generator=torch.Generator().manual_seed(3))
    slots = BLOCKS_OF.slots
    given = bound(memory) | {name: (poisoned(x), "rows") for name, x in stream.items()}
    given |= {"token": (poisoned(tokens), "rows"), "output_row": (poisoned(slots), "outputs")}
    (_logits, token, logit, lse, score, walk), launched = traced.run(given, None)
    double = [x.double() for x in stream.values()]
    wanted = traced.exact(*double, inputs(memory, exact=True), tokens, slots)
    if compute == "fp32":  # in bf16 near ties may change places, and what stands on them
        assert torch.equal(token, wanted[1]) and torch.equal(walk, wanted[5])
        near(score, wanted[4], compute)
    near(logit, wanted[2], compute)
    near(lse, wanted[3], compute)
    assert names(launched)[-2:] == ["lattice_scores", "lattice_walk"]
    assert names(launched)[0] == "add_rms_norm"  # which picks the rows


class Wide(nn.Module):
    """A product that is split, and the convolution behind it."""

    def __init__(self, _spec: object) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(4096, 4096, dtype=torch.bfloat16), requires_grad=False)
        self.taps = nn.Parameter(torch.empty(2 * 4096), requires_grad=False)

    def forward(self, x: Tensor, delta: Tensor, position: Tensor, prefix: Tensor) -> Tensor:
        return block_conv(linear(x, self.weight, None), delta[:, 8:24], self.taps, position, prefix, 2)


class Reshaped(nn.Module):
    """A convolution of what is no row of the pass."""

    def __init__(self, _spec: object) -> None:
        super().__init__()
        self.taps = nn.Parameter(torch.empty(2 * 8), requires_grad=False)

    def forward(self, x: Tensor, delta: Tensor, position: Tensor, prefix: Tensor) -> Tensor:
        return block_conv(self.taps.view(2, 8), delta[:, :16], self.taps, position, prefix, 2)


def lowered_alone(make: Any, rows: int) -> list[Launch]:
    with torch.device("meta"):
        x, delta, ids = torch.empty(ROWS, 4096), torch.empty(ROWS, 32), torch.empty(ROWS, dtype=torch.int32)
        module = make(SPEC)
        part = export_part(module, x, delta, ids, ids.clone())
    low = lowering("bf16", rows)
    operands = {"x": low.scratch((ROWS, 4096), "fp32"), "delta": low.scratch((ROWS, 32), "fp32")}
    operands |= {name: Operand("io", 64, 64, (ROWS,), 1, "rows", "int32") for name in ("position", "prefix")}
    for name, parameter in module.named_parameters():
        shape, dtype = tuple(parameter.shape), "bf16" if parameter.dim() == 2 else "fp32"
        operands[name] = Operand("weights", 0, parameter.nbytes, shape, shape[-1], dtype=dtype)
    low.lower(part, operands)
    return list(low.assembly.launches)


@pytest.mark.parametrize(("rows", "parts"), [(16, 2), (128, 1)])
def test_a_convolution_sums_what_a_product_left_in_parts(rows: int, parts: int) -> None:
    product, conv = lowered_alone(Wide, rows)
    assert product.kernel in ("linear", "linear_chunk") and conv.kernel == "block_conv"
    assert (constant(conv, "PARTS"), constant(conv, "X_STRIDE")) == (parts, parts * 4096)
    assert (constant(conv, "GROUP"), constant(conv, "DELTA_STRIDE")) == (512, 32)
    assert argument(conv, "delta").offset == 32 and conv.work is not None and conv.work.grid == (rows, 8, 1)


def test_a_convolution_of_no_rows_is_refused() -> None:
    with pytest.raises(LoweringError, match="holds no rows of the pass"):
        lowered_alone(Reshaped, 16)


class Attention(nn.Module):
    def __init__(self, _spec: object) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(8, 4 * D, dtype=torch.bfloat16), requires_grad=False)

    def forward(self, q: Tensor, inputs: Any, k_cache: Tensor, v_cache: Tensor) -> Tensor:
        where = (inputs.position, inputs.lane, inputs.prefix, inputs.block_table)
        y = block_attention(q.view(-1, 4, D), k_cache, v_cache, *where, 0.5, SIZE, 2048)
        return linear(y.view(-1, 4 * D), self.weight, None)


def test_attention_covers_its_window_as_far_as_the_context_goes_and_rounds_for_products() -> None:
    with torch.device("meta"):
        meta = (torch.empty(ROWS, 4 * D), meta_inputs(), *meta_caches("bf16"))
    memory = Memory("bf16", window=2048, behind=SIZE)
    given = bound(memory) | {"q": (poisoned(normal(NUM_ROWS, 4 * D).bfloat16()), "rows")}
    _found, (split, merge, _product) = Traced(Attention, "bf16", *meta).run(given, memory.held)
    assert names([split, merge]) == ["block_attention_split", "block_attention_merge"]
    assert argument(merge, "y").dtype == "bf16"
    # 256 positions and a verify's rows behind them, in spans of 128.
    assert constant(split, "SPANS") == constant(merge, "SPANS") == 3 and constant(split, "WINDOW") == 2048
    assert constant(split, "PAGE") == 2 * G * TILE * D and argument(split, "k_cache").place == "draft_kv"
