"""Lowering: glue, views and operators of a small module run as they do eagerly; what has no lowering is named."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from tandem.artifacts.io import Geometry, IoLayout
from tandem.artifacts.program import decode, encode
from tandem.artifacts.weights import MappedWeights, WeightsWriter
from tandem.compile.assembly import Assembly, Operand
from tandem.compile.cpu.panels import SAFETENSORS, pack, stored_shape, unpack
from tandem.compile.cpu.rules import RULES
from tandem.compile.lowering import Lowering
from tandem.compile.profile import PROFILES, Format, Profile
from tandem.compile.trace import OUTPUTS, ROWS, Part, export_part
from tandem.errors import LoweringError
from tandem.kernels import add_rms_norm, argmax_gap, embedding, gather_rows, linear, rms_norm, swiglu
from tandem.kernels.build import read_signatures
from tandem.keys import Kind
from tandem.runtime.executor.cpu import CpuExecutor, Image
from tandem.runtime.executor.library import Library
from tandem.runtime.rows import Span, extend_rows
from tests.kernels.harness import error, library

WIDTH, VOCAB, EPS = 42, 75, 1e-5
IO = IoLayout(Geometry(64, VOCAB, 48, 32, 2, 64, 4096))
ROUNDED = {"fp32": 0.0, "bf16": 0.005, "int8": 0.03, "int4": 0.03}
NAMES = ("embedding", "wide", "bias", "small", "norm", "head")


class Glue(nn.Module):
    """Slices, views, adds and products around norms; nothing in it is aligned to a vector."""

    def __init__(self, profile: Profile) -> None:
        super().__init__()
        self.stored: dict[str, tuple[Format, np.ndarray]] = {}
        shapes = {"wide": (2 * WIDTH, WIDTH), "embedding": (VOCAB, WIDTH), "head": (VOCAB, WIDTH)}
        for seed, (name, shape) in enumerate({**shapes, "bias": 2 * WIDTH, "small": 14, "norm": WIDTH}.items()):
            noise = torch.randn(shape, generator=torch.Generator().manual_seed(seed)) / 6
            form = profile.format(name, tuple(noise.shape))
            self.stored[name] = form, pack(noise, form)
            value = unpack(self.stored[name][1], form, tuple(noise.shape))
            setattr(self, name, nn.Parameter(value, requires_grad=False))

    def forward(self, token: Tensor, output_row: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        x = embedding(token, self.embedding)
        both = linear(x, self.wide, self.bias)
        left, right = both[:, :WIDTH], both[:, WIDTH:]
        heads = rms_norm((left * right + x).view(-1, 3, 14), self.small, EPS)
        tail = both[:, -WIDTH - 5 : -5] * heads.reshape(-1, WIDTH)
        total, normed = add_rms_norm(tail, right, self.norm, EPS)
        folded = swiglu(both) + total
        y = gather_rows(folded * normed, output_row)
        logits = linear(y + y, self.head, None)
        return logits, *argmax_gap(logits)


def example() -> tuple[Tensor, Tensor]:
    return torch.empty(ROWS, dtype=torch.int32), torch.empty(OUTPUTS, dtype=torch.int32)


def io_operand(name: str, rows: int, count: str, dtype: str = "int32") -> Operand:
    field = IO.fields[name]
    return Operand("io", field.offset, field.nbytes, (rows, *field.shape[1:]), field.shape[-1], count, dtype)


RESULTS = [
    io_operand("logits", OUTPUTS, "outputs", "fp32"),
    io_operand("argmax", OUTPUTS, "outputs"),
    io_operand("gap", OUTPUTS, "outputs", "fp32"),
]


def lowering() -> Lowering:
    most = {"rows": IO.geometry.max_rows, "outputs": IO.geometry.max_outputs}
    return Lowering(Assembly(read_signatures(library())), IO, RULES, most, "CPU")


def executor(module: Glue, folder: Path, threads: int) -> CpuExecutor:
    """The module lowered and bound; its weights go through a file as those of a bundle do."""
    shapes = {name: tuple(getattr(module, name).shape) for name in NAMES}
    forms = {name: module.stored[name][0] for name in NAMES}
    plan = [(name, SAFETENSORS[forms[name]], stored_shape(shape, forms[name])) for name, shape in shapes.items()]
    path = folder / f"{threads}.safetensors"
    with WeightsWriter(path, plan) as writer:
        for name in NAMES:
            writer.write(name, module.stored[name][1])
    weights, inputs = MappedWeights(path), {"token": io_operand("token", ROWS, "rows")}
    inputs["output_row"] = io_operand("output_row", OUTPUTS, "outputs")
    for name, shape in shapes.items():
        span = weights.offset(name), weights.spans[name].nbytes
        inputs[name] = Operand("weights", *span, shape, shape[-1], "", forms[name])
    low = lowering()
    low.lower(export_part(module, *example()), inputs, RESULTS)
    program = low.assembly.program("0" * 64, {"weights": len(weights.data), "kv": 4096, "io": IO.nbytes})
    image = Image(IO.geometry, weights.data, Library(library(), threads), {Kind.EXTEND: decode(encode(program), "x")})
    return CpuExecutor(image, num_pages=1, poison=True)


def logits(run: CpuExecutor, tokens: list[int]) -> np.ndarray:
    rows = extend_rows([Span(0, 0, tokens, outputs=1)], np.zeros((1, 2), np.int32))
    rows.output_row = np.arange(max(0, len(tokens) - 32), len(tokens), dtype=np.int32)
    outcome = run.run(Kind.EXTEND, rows)
    found = np.stack([run.logits(i) for i in range(len(rows.output_row))])
    top = np.sort(found, axis=1)
    assert (outcome.argmax == found.argmax(1)).all() and (outcome.gap == top[:, -1] - top[:, -2]).all()
    return found


@pytest.mark.parametrize("profile", PROFILES.values(), ids=lambda profile: profile.name)
def test_a_module_runs_as_it_does_eagerly(profile: Profile, tmp_path: Path) -> None:
    """Products round their inputs as their weights are stored: that much apart from the module in float64."""
    module = Glue(profile)
    tokens = [(7 * i * i + 3) % VOCAB for i in range(48)]
    run = executor(module, tmp_path, threads=2)
    found = logits(run, tokens)
    rows = torch.arange(16, 48, dtype=torch.int32)
    plain = module(torch.tensor(tokens), rows)[0]
    exact = module.double()(torch.tensor(tokens), rows)[0]
    assert exact.dtype == torch.float64
    share = ROUNDED[profile.name] * float(exact.square().mean().sqrt())
    assert error(found, exact).rms <= 2 * error(plain, exact).rms + share
    assert error(found, exact).worst <= 4 * error(plain, exact).worst + 5 * share
    for count in (1, 2, 3, 5, 13, 16, 31, 32):
        assert (logits(run, tokens[-count:]) == found[-count:]).all(), count
    run.close()
    alone = executor(Glue(profile), tmp_path, threads=1)
    assert (logits(alone, tokens) == found).all()
    alone.close()


class Wrapped(nn.Module):
    """A function of x [R, 16], a weight [16, 16] and a vector [16]."""

    def __init__(self, function: Callable[[Tensor, Tensor, Tensor], object]) -> None:
        super().__init__()
        self.function = function
        self.weight, self.vector = nn.Parameter(torch.zeros(16, 16)), nn.Parameter(torch.zeros(16))

    def forward(self, x: Tensor) -> object:
        return self.function(x, self.weight, self.vector)


def traced(function: Callable[[Tensor, Tensor, Tensor], object], dtype: torch.dtype = torch.float32) -> Part:
    with torch.no_grad():
        return export_part(Wrapped(function), torch.zeros(ROWS, 16, dtype=dtype))


INPUTS = {
    "x": Operand("io", 0, ROWS * 64, (ROWS, 16), 16, "rows"),
    "weight": Operand("weights", 0, 2048, (16, 16), 16),
    "vector": Operand("weights", 2048, 64, (16,), 16),
}


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda x, w, v: x.softmax(-1), r"no CPU lowering for operator aten\.softmax.* \(node softmax\); add a rule"),
        (lambda x, w, v: x.sum(-1), r"operator aten\.sum"),
        (lambda x, w, v: x.add_(x), r"operator aten\.add_\.Tensor"),
        (lambda x, w, v: torch.sigmoid(x) * x, r"operator aten\.sigmoid"),
        (lambda x, w, v: x @ w, r"operator aten\.matmul"),
        (lambda x, w, v: x.view(2 * ROWS, 8) * 1.0, r"aten\.view.*mixes rows"),
        (lambda x, w, v: x.reshape(-1), r"aten\.\w+.*mixes rows"),
        (lambda x, w, v: x[1:], r"aten\.slice.*only plain slices"),
        (lambda x, w, v: x[:, ::2], r"aten\.slice.*only plain slices"),
        (lambda x, w, v: x.view(ROWS, 4, 4)[:, :, :2], r"aten\.slice.*only plain slices"),
        (lambda x, w, v: x * 2.0, r"aten\.mul\.Tensor.*2\.0 stands where a tensor is wanted"),
        (lambda x, w, v: x + v, r"aten\.add\.Tensor.*v.* holds no fp32 rows"),
        (lambda x, w, v: torch.add(x, x, alpha=2), r"aten\.add\.Tensor.*alpha has no lowering"),
        (lambda x, w, v: x + x[:, :1], r"aten\.add\.Tensor.*broadcasts"),
        (lambda x, w, v: linear(w, w, None), r"tandem\.linear.*weight holds no fp32 rows"),
        (lambda x, w, v: linear(x, x, None), r"tandem\.linear.*x is no weight"),
        (lambda x, w, v: rms_norm(x, x[:, :16], 1e-6), r"tandem\.rms_norm.*is no weight"),
        (lambda x, w, v: linear(x, w[:8], None), r"aten\.slice.*weight holds no fp32 rows"),
        (lambda x, w, v: rms_norm(w.view(ROWS + 3, 4, 4), v[:4], 1e-6), r"aten\.\w+.*holds no fp32 rows"),
    ],
)
def test_what_has_no_lowering_is_named(function: Callable[..., object], message: str) -> None:
    with pytest.raises(LoweringError, match=message):
        lowering().lower(traced(function), INPUTS)


def test_integer_sums_are_not_taken_for_real_ones() -> None:
    inputs = {**INPUTS, "x": Operand("io", 0, ROWS * 64, (ROWS, 16), 16, "rows", "int32")}
    with pytest.raises(LoweringError, match=r"aten\.add\.Tensor.*holds no fp32 rows"):
        lowering().lower(traced(lambda x, w, v: x + x, torch.int32), inputs)


@pytest.mark.parametrize(
    "function",
    [lambda x, w, v: (x,), lambda x, w, v: ((x + x).view(ROWS, 4, 4),), lambda x, w, v: ((x + x)[:, :8],)],
    ids=["input", "view", "slice"],
)
def test_a_result_that_cannot_be_put_in_its_place_is_refused(function: Callable[..., object]) -> None:
    with pytest.raises(LoweringError, match="output"):
        lowering().lower(traced(function), INPUTS, [Operand("io", 4096, ROWS * 64, (ROWS, 16), 16, "rows")])


def test_negative_and_overlong_slices_are_those_of_python() -> None:
    low = lowering()
    found = low.lower(traced(lambda x, w, v: (x[:, -5:], x[:, -100:8], x[:, 3:100], x[:, :-9])), INPUTS)
    assert [(o.offset, o.shape) for o in found] == [
        (44, (ROWS, 5)),
        (0, (ROWS, 8)),
        (12, (ROWS, 13)),
        (0, (ROWS, 7)),
    ]


def test_outputs_that_nobody_reads_have_places_of_their_own() -> None:
    low = lowering()
    low.lower(traced(lambda x, w, v: (add_rms_norm(x, x, v, 1e-6), x + x)[1]), INPUTS)
    program = low.assembly.program("0" * 64, {"weights": 4096, "io": 4096})
    first = program.launches[0]
    names = [p.name for p in read_signatures(library())["add_rms_norm"]]
    values = program.params["value"][first["first_param"] :][: len(names)].tolist()
    assert abs(values[names.index("sum")] - values[names.index("y")]) >= 48 * 16 * 4
