"""Programs of hybrids for a GPU as written down: what is launched in which order, and where its arguments lie."""

from __future__ import annotations

import hashlib
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tandem.artifacts.io import IoLayout
from tandem.artifacts.program import Program, decode, encode
from tandem.compile.assembly import Assembly, Launch, Operand
from tandem.compile.cuda.composer import CudaComposer
from tandem.compile.cuda.entries import BUCKETS, Shape, shapes
from tandem.compile.cuda.lowering import CudaLowering
from tandem.compile.cuda.programs import Lowered, encode_program, lower
from tandem.compile.models.spec import HybridSpec
from tandem.compile.trace import ROWS, SLOTS, export_part
from tandem.errors import BundleCorrupt, LoweringError
from tandem.kernels import causal_conv, delta_gates, delta_rule
from tandem.kernels.cuda.table import KERNELS
from tandem.keys import TARGET_KINDS, Kind
from tandem.runtime.executor import roles
from tests.compile.cuda import lowered
from tests.compile.cuda.lowered import argument, constant, fake
from tests.tiny import HYBRIDS

EXTEND, CHAIN, TREE, COMMIT = (Kind.EXTEND,), (Kind.VERIFY_CHAIN,), (Kind.VERIFY_TREE,), (Kind.COMMIT,)
RECURRENT = ["recurrent_inputs", "conv_tail", "delta_rule", "delta_verify", "gated_rms_norm"]


@pytest.fixture(scope="module", params=[("qwen3_5", "bf16"), ("qwen3_5-odd", "fp32")], ids="-".join)
def composer(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> CudaComposer:
    return lowered.composer(tmp_path_factory.mktemp("hybrid"), *request.param)


def spec_of(composer: CudaComposer) -> HybridSpec:
    assert isinstance(composer.spec, HybridSpec)
    return composer.spec


def of(found: Lowered, kernel: str) -> list[Launch]:
    return [launch for launch in found.launches if launch.kernel == kernel]


def written(low: Lowered) -> Program:
    cubins = {variant: fake(variant) for variant in low.variants()}
    return decode(encode(encode_program(low, cubins, lambda data: hashlib.sha256(data).hexdigest())), "x")


@pytest.mark.parametrize("family", HYBRIDS)
def test_every_program_can_be_written(tmp_path: Path, family: str) -> None:
    model = lowered.composer(tmp_path, family)
    made = [lower(model, shape) for shape in shapes(model.geometry)]
    assert len(made) == 3 * len(BUCKETS) + 3 + 1 + len(BUCKETS)
    for program in made:
        found = written(program)
        assert len(found.launches) == len(program.launches)
        regions = {region.name: region.nbytes for region in found.regions}
        assert list(regions) == ["weights", "kv", "io", "state", "factors", "seen", "scratch"]
        assert (regions["state"], regions["factors"]) == (model.geometry.state_bytes, model.geometry.factor_bytes)
    wanted = {variant.kernel for program in made for variant in program.variants()}
    assert {*RECURRENT, "sigmoid_gate", "conv_commit", "delta_commit", "kv_move", "rotary_kv_write"} <= wanted


@pytest.mark.parametrize(
    ("kinds", "rows", "recurrence"),
    [
        (EXTEND, 1, ["recurrent_inputs", "delta_rule"]),
        (EXTEND, 32, ["recurrent_inputs", "delta_rule"]),
        (EXTEND, 64, ["recurrent_inputs", "conv_tail", "delta_rule"]),
        (CHAIN, 1, ["recurrent_inputs", "delta_verify"]),
        (TREE, 32, ["recurrent_inputs", "delta_verify"]),
    ],
)
def test_a_layer_is_read_in_the_order_of_the_model(
    composer: CudaComposer, kinds: tuple[Kind, ...], rows: int, recurrence: list[str]
) -> None:
    found = lower(composer, Shape(kinds, 0 if rows == 64 else 256, rows))
    names = lowered.names(list(found.launches))
    product = "linear_chunk" if rows == 64 else "linear"
    mixed = [product, product, *recurrence, "gated_rms_norm", product, "add_rms_norm"]
    starts = [i for i, name in enumerate(names) if name == "recurrent_inputs"]
    assert len(starts) == composer.geometry.recurrent_layers
    for start in starts:
        assert names[start - 2 :][: len(mixed)] == mixed
    kernel = "attention_chunk" if rows == 64 else "attention_tail" if kinds == TREE else "attention_merge"
    for i in (i for i, name in enumerate(names) if name == kernel):
        assert names[i + 1 : i + 4] == ["sigmoid_gate", product, "add_rms_norm"]
    for i in (i for i, name in enumerate(names) if name == "rotary_kv_write"):
        assert names[i - 3 : i] == [product, "rms_norm", "rms_norm"]


def test_states_and_factors_are_each_layers_own(composer: CudaComposer) -> None:
    spec, g, item = spec_of(composer), composer.geometry, 2 if composer.profile.matrix == "bf16" else 4
    layers, (heads, dk, dv), (past, channels) = g.recurrent_layers, spec.state_shape, spec.tail_shape
    state, tail, first_tail = 4 * heads * dk * dv, item * past * channels, layers * 4 * heads * dk * dv
    steps = lower(composer, Shape(EXTEND, 256, 1))
    chain = lower(composer, Shape(CHAIN, 256, 8))
    for found, kernel in ((steps, "delta_rule"), (chain, "delta_verify")):
        for layer, launch in enumerate(of(found, kernel)):
            held = argument(launch, "state")
            assert (held.place, held.offset, held.extent) == ("state", layer * state, state)
            assert constant(launch, "SLOT") == g.state_bytes // 4
            assert (constant(launch, "HEADS"), constant(launch, "GROUP")) == (heads, heads // spec.linear_num_key_heads)
    factor = g.factor_bytes // layers
    sizes = [item * 32 * channels, *(4 * 32 * size for size in (spec.linear_key_size, heads * dv, heads))]
    places = [(sum(sizes[:i]), size) for i, size in enumerate(sizes)]
    assert sum(sizes) == factor
    for layer, launch in enumerate(of(chain, "recurrent_inputs")):
        held = argument(launch, "tail")
        assert (held.place, held.offset, held.extent) == ("state", first_tail + layer * tail, tail)
        assert held.dtype == argument(launch, "raw").dtype == composer.profile.matrix
        assert constant(launch, "SLOT") == g.state_bytes // item and not constant(launch, "MOVE")
        verify = of(chain, "delta_verify")[layer]
        kept = [argument(launch, "raw"), argument(launch, "k_factor"), argument(verify, "u_factor")]
        kept.append(argument(launch, "decay"))
        assert [(k.place, k.offset - layer * factor, k.extent) for k in kept] == [
            ("factors", first, size) for first, size in places
        ]
        assert (verify.arguments["k"], verify.arguments["decay"]) == (kept[1], kept[3])
        assert constant(verify, "K_STRIDE") == spec.linear_key_size and constant(verify, "Q_STRIDE") == channels
    for launch in of(steps, "recurrent_inputs"):
        assert launch.arguments["raw"] is None and launch.arguments["k_factor"] is None
        assert constant(launch, "MOVE") and not constant(launch, "TREE")


def test_a_commit_moves_all_layers_in_three_launches(composer: CudaComposer) -> None:
    spec, g = spec_of(composer), composer.geometry
    found = lower(composer, Shape(COMMIT, 0, 0))
    assert lowered.names(list(found.launches)) == ["kv_move", "conv_commit", "delta_commit"]
    move, conv, delta = found.launches
    item = 2 if composer.profile.matrix == "bf16" else 4
    assert move.work is not None and move.work.grid[0] == g.num_layers == spec.layer_types.count("full_attention")
    assert conv.work is not None and conv.work.grid[0] == g.recurrent_layers
    assert constant(conv, "RAW_LAYER") * item == constant(delta, "K_LAYER") * 4 == g.factor_bytes // g.recurrent_layers
    assert constant(conv, "LAYER") * item * g.recurrent_layers == argument(conv, "tail").extent
    assert constant(delta, "LAYER") * 4 * g.recurrent_layers == argument(delta, "state").extent
    assert argument(conv, "tail").offset == argument(delta, "state").extent
    io = IoLayout(g).fields
    for launch in (conv, delta):
        for name in ("state_slot", "move_lane", "move_row", "move_target"):
            assert argument(launch, name).offset == io[name].offset
        assert argument(launch, "count").offset == 8


def test_what_only_products_read_is_rounded_by_gates_and_norms(composer: CudaComposer) -> None:
    for found in (lower(composer, Shape(EXTEND, 256, 1)), lower(composer, Shape(TREE, 256, 16))):
        for kernel in ("sigmoid_gate", "gated_rms_norm"):
            for launch in of(found, kernel):
                assert argument(launch, "y").dtype == composer.profile.matrix and argument(launch, "x").dtype == "fp32"
        for launch in of(found, "gated_rms_norm"):
            assert constant(launch, "ROUNDED") == (composer.profile.matrix == "bf16")


def test_extends_and_chains_share_all_kernels_but_the_recurrences(composer: CudaComposer) -> None:
    def kernels(kinds: tuple[Kind, ...]) -> Counter[str]:
        return Counter(lowered.names(list(lower(composer, Shape(kinds, 256, 8)).launches)))

    differing = kernels(EXTEND) - kernels(CHAIN), kernels(CHAIN) - kernels(EXTEND)
    count = composer.geometry.recurrent_layers
    assert differing == (Counter(delta_rule=count), Counter(delta_verify=count))


class Layer(nn.Module):
    """A recurrence over what `wrong` makes of its inputs: one key and two value heads of 8."""

    def __init__(self, wrong: str) -> None:
        super().__init__()
        self.wrong = wrong
        self.weight, self.a_log = (nn.Parameter(torch.empty(size), requires_grad=False) for size in (4 * 32, 2))

    def forward(self, x: Tensor, gates: Tensor, state: Tensor, tail: Tensor, slot: Tensor, where: Tensor) -> Any:
        rows, at = x.shape[0], (slot, where, where, where)
        y = causal_conv(x, self.weight, tail, *at)
        if self.wrong == "two convolutions":
            v = causal_conv(x, self.weight, tail, *at)[:, 16:].view(rows, 2, 8)
        else:
            v = y[:, 16:].view(rows, 2, 8)
        q, k = y[:, :8].view(rows, 1, 8), y[:, 8:16].view(rows, 1, 8)
        if self.wrong == "keys first":
            q, k = k, q
        decay, beta = delta_gates(gates[:, :2], gates[:, 2:4], self.a_log, self.a_log)
        if self.wrong == "no gates":
            decay, beta = gates[:, :2], gates[:, 2:4]
        if self.wrong == "gates first":
            decay, beta = beta, decay
        if self.wrong == "other rows":
            at = (slot, where, where, slot)
        o = delta_rule(q, k, v, decay, beta, state, *at)
        return (o, y) if self.wrong == "read twice" else o


@pytest.mark.parametrize(
    "wrong", ["two convolutions", "keys first", "no gates", "gates first", "other rows", "read twice"]
)
def test_a_recurrence_of_anything_else_is_refused(wrong: str) -> None:
    names = ["x", "gates", "state", "tail", "slot", "where"]
    with torch.device("meta"):
        x, gates = torch.empty(ROWS, 32), torch.empty(ROWS, 4)
        memory = torch.empty(SLOTS, 2, 8, 8), torch.empty(SLOTS, 3, 32)
        part = export_part(Layer(wrong), x, gates, *memory, *(torch.empty(ROWS, dtype=torch.int32) for _ in range(2)))
    assembly = Assembly({name: kernel.signature for name, kernel in KERNELS.items()})
    low = CudaLowering(assembly, lowered.IO, rows=8, context=256, layers=1, compute="bf16")
    operands = {name: low.scratch((ROWS, 32), "fp32") for name in names[:2]}
    operands |= {name: Operand("state", 0, 64, (0, 2, 8, 8)) for name in names[2:4]}
    operands |= {name: Operand("io", 64, 64, (ROWS,), 1, "rows", "int32") for name in names[4:]}
    operands |= {name: Operand("weights", 0, 512, (128,)) for name in ("weight", "a_log")}
    with pytest.raises(LoweringError, match=r"reads no convolution's q, k and v|has no kernel but beside"):
        low.lower(part, operands)


def test_a_program_goes_for_its_own_kind_alone(composer: CudaComposer) -> None:
    """As a server tells them apart when it loads them: by what their launches are given."""
    layout = IoLayout(composer.geometry)
    for kinds, rows in ((EXTEND, 1), (EXTEND, 64), (CHAIN, 1), (TREE, 32), (COMMIT, 0)):
        program = written(lower(composer, Shape(kinds, 256 if 0 < rows < 64 else 0, rows)))
        for kind in TARGET_KINDS:
            if kind in kinds:
                roles.check(kind, program, layout, "this")
                continue
            with pytest.raises(BundleCorrupt, match=rf"^this: its program takes .* {kind} does; rebuild the bundle"):
                roles.check(kind, program, layout, "this")
