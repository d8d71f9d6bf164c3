"""What glue becomes for a GPU: launches between those of operators, over operands as they lie, for all rows."""

from __future__ import annotations

from dataclasses import replace
from math import prod
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tandem.compile.assembly import Buffer, Operand
from tandem.compile.cuda.check import stretches
from tandem.compile.cuda.entries import shapes
from tandem.compile.cuda.programs import Lowered, encode_program
from tandem.compile.cuda.programs import lower as lower_shape
from tandem.compile.profile import find_profile
from tandem.compile.trace import ROWS, export_part
from tandem.errors import LoweringError
from tandem.kernels import linear, rms_norm
from tests.compile.cuda import gated, lowered
from tests.compile.cuda.gated import BUCKETS, ORDER, Buckets, glue_operands, kind
from tests.compile.cuda.lowered import Function, fake

ITEM_BYTES = {"fp32": 4, "bf16": 2, "int32": 4}


@pytest.fixture(params=BUCKETS)
def low(request: pytest.FixtureRequest, buckets: Buckets) -> Lowered:
    return buckets["bf16", request.param]


def test_runs_stand_between_the_operators_whose_values_they_take(low: Lowered) -> None:
    assert [kind(launch.kernel) for launch in low.launches] == list(ORDER)
    assert [launch.kernel in low.glue for launch in low.launches] == [name == "glue" for name in ORDER]
    assert {variant.kernel.removesuffix("_chunk") for variant in low.variants()} == set(ORDER) - {"glue"}


def test_operands_are_what_was_made_and_what_will_be_read(low: Lowered) -> None:
    places: list[dict[str, Any]] = [
        {name: value.place for name, value in launch.arguments.items() if isinstance(value, Operand)}
        for launch in low.launches
    ]
    embedding, both, opened, norm, turned, out, total, gather, closed, logits, *_ = places
    assert opened == {"x0": both["y"], "x1": "weights", "x2": embedding["y"], "y0": norm["x"]}
    assert turned == {"x0": norm["y"], "x1": "weights", "y0": out["x"]}
    assert total == {"x0": out["y"], "x1": opened["y0"], "y0": gather["x"]}
    assert closed == {"x0": gather["y"], "y0": logits["x"]}
    for run in glue_operands(low):
        assert run["y0"].place not in [value.place for name, value in run.items() if name != "y0"]


def test_weights_of_glue_are_the_modules_own(buckets: Buckets, tmp_path: Path) -> None:
    profile = find_profile("bf16")
    weights = gated.write_weights(gated.Gated(profile), profile, tmp_path / "weights")
    opened, turned, *_ = glue_operands(buckets["bf16", 8])
    for operand, name in ((opened["x1"], "shift"), (turned["x1"], "scale")):
        assert (operand.offset, operand.extent) == (weights.offset(name), weights.spans[name].nbytes)


@pytest.mark.parametrize(("profile", "rounded"), [("bf16", "bf16"), ("fp32", "fp32")])
def test_what_only_products_read_is_kept_as_they_round_it(buckets: Buckets, profile: str, rounded: str) -> None:
    low = buckets[profile, 8]
    opened, turned, total, closed = glue_operands(low)
    assert [run["y0"].dtype for run in (opened, turned, total, closed)] == ["fp32", rounded, "fp32", rounded]
    assert turned["x1"].dtype == rounded  # a matrix that glue reads as it is stored
    types = {"fp32": torch.float32, "bf16": torch.bfloat16}
    for launch, operands in zip((x for x in low.launches if x.kernel in low.glue), glue_operands(low), strict=True):
        kernel = low.glue[launch.kernel]
        told = {parameter: kernel.dtypes[node.name] for node, parameter in kernel.parameters.items()}
        assert told == {name: types[operand.dtype] for name, operand in operands.items()}


@pytest.mark.parametrize("rows", BUCKETS)
def test_kernels_are_for_all_rows_or_outputs_of_the_bucket(buckets: Buckets, rows: int) -> None:
    low = buckets["bf16", rows]
    assert [kernel.rows for kernel in low.glue.values()] == [rows, rows, rows, min(rows, 32)]
    for launch, operands in zip((x for x in low.launches if x.kernel in low.glue), glue_operands(low), strict=True):
        kernel = low.glue[launch.kernel]
        for node, parameter in kernel.parameters.items():
            operand = operands[parameter]
            touched = prod(kernel.run.shape(node, kernel.rows)) * ITEM_BYTES[operand.dtype]
            room = operand.place.nbytes if isinstance(operand.place, Buffer) else operand.extent
            assert operand.offset % 16 == 0 and room >= touched
            assert not isinstance(operand.place, Buffer) or operand.place.offset % 16 == 0


def test_buffers_in_use_at_one_time_lie_apart(low: Lowered) -> None:
    first: dict[Buffer, int] = {}
    last: dict[Buffer, int] = {}
    for i, launch in enumerate(low.launches):
        for buffer in launch.buffers():
            first.setdefault(buffer, i)
            last[buffer] = i
    reused = 0
    for one in first:
        for other in first:
            apart = one.offset + one.nbytes <= other.offset or other.offset + other.nbytes <= one.offset
            together = first[one] <= last[other] and first[other] <= last[one]
            assert one is other or apart or not together
            reused += not apart and one is not other
    assert reused and max(b.offset + b.nbytes for b in first) <= low.nbytes["scratch"]


@pytest.mark.parametrize("family", ["llama", "qwen3"])
def test_families_without_glue_have_none(family: str, tmp_path: Path) -> None:
    composer = lowered.composer(tmp_path, family)
    for shape in shapes(composer.geometry):
        low = lower_shape(composer, shape)
        assert not low.glue and all(launch.work is not None for launch in low.launches)
        program = encode_program(low, {variant: fake(variant) for variant in low.variants()}, lambda data: "0" * 64)
        ((listed, whole),) = stretches(low, program)
        assert listed == list(low.launches) and (whole.edges == program.edges).all()


class Gate(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return torch.sigmoid(x)


def sliced(x: Operand) -> Operand:
    """Columns 16 on of a row of 64."""
    return replace(x, offset=64, stride=64)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (sliced, r"^glue of sigmoid: x is 32 of 64 columns, 64 bytes behind the first; make it the result of"),
        (lambda x: replace(x, offset=8), r"x is 32 of 32 columns, 8 bytes behind"),
    ],
)
def test_rows_that_lie_apart_or_crooked_are_refused(change: Any, words: str) -> None:
    with torch.device("meta"):
        part = export_part(Gate(), torch.empty(ROWS, 32))
    low = gated.lowering(8, "bf16")
    buffer = Buffer(8 * 256)
    with pytest.raises(LoweringError, match=words):
        low.lower(part, {"x": change(Operand(buffer, 0, buffer.nbytes, (ROWS, 32), 32, "rows"))})


@pytest.mark.parametrize(
    ("function", "words"),
    [
        (lambda i, w: i.x > i.z, r"glue of gt: makes torch\.bool \[13, 32\]"),
        (lambda i, w: torch.sigmoid(i.x).to(torch.float16), r"glue of to: makes torch\.float16"),
        (lambda i, w: torch.sigmoid(i.x).mean(-1), r"aten\.mean\.dim \(node mean\) is neither"),
        (lambda i, w: torch.sigmoid(i.cos), r"glue of sigmoid: makes torch\.float32 \[100, 8\]"),
    ],
)
def test_glue_that_programs_cannot_hold_is_named(function: Function, words: str) -> None:
    with pytest.raises(LoweringError, match=words):
        lowered.launches(function)


def test_an_operator_that_waits_is_launched_before_the_glue_that_reads_it() -> None:
    def both(i: Any, w: Any) -> Any:
        product = linear(i.x, w.wide, None)
        return torch.sigmoid(product[:, :32]) * product[:, 32:], rms_norm(product[:, :32], w.vector, 1e-6)

    assert [kind(launch.kernel) for launch in lowered.launches(both)] == ["linear", "glue", "rms_norm"]
