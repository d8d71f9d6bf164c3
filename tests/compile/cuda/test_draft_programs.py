"""Programs of a drafter for a GPU as written down: what is launched in which order, and where arguments lie."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path

import pytest
from torch import Tensor

from tandem.artifacts.io import IoLayout
from tandem.artifacts.program import Program, decode, encode
from tandem.compile.assembly import Launch, Operand
from tandem.compile.cuda.composer import CudaComposer
from tandem.compile.cuda.entries import BUCKETS, Shape, shapes
from tandem.compile.cuda.programs import Lowered, encode_program, lower
from tandem.errors import BundleCorrupt
from tandem.kernels import add_rms_norm, gather_rows, linear, rms_norm, scatter_rows
from tandem.keys import DRAFTER_KINDS, Kind
from tandem.runtime.executor import roles
from tests.compile.cuda import lowered
from tests.compile.cuda.lowered import Inputs, Weights, argument, constant, fake, launches, names

DRAFT, SYNC, NEXT = (Kind.DRAFT,), (Kind.SYNC,), (Kind.NEXT,)
EXTEND, TREE = (Kind.EXTEND,), (Kind.VERIFY_TREE,)
RING = 256 + 512


@pytest.fixture(scope="module", params=[("qwen3_5", "bf16"), ("qwen3_5-odd", "fp32")], ids="-".join)
def model(request: pytest.FixtureRequest) -> tuple[str, str]:
    """Family and profile; the odd one's pages are twice as large as its drafter's."""
    return request.param  # type: ignore[no-any-return]


@pytest.fixture(scope="module")
def composer(model: tuple[str, str], tmp_path_factory: pytest.TempPathFactory) -> CudaComposer:
    return lowered.composer(tmp_path_factory.mktemp("drafter"), *model, drafter=True)


def of(found: Lowered, kernel: str) -> list[Launch]:
    return [launch for launch in found.launches if launch.kernel == kernel]


def written(low: Lowered) -> Program:
    cubins = {variant: fake(variant) for variant in low.variants()}
    return decode(encode(encode_program(low, cubins, lambda data: hashlib.sha256(data).hexdigest())), "x")


def test_every_program_can_be_written(composer: CudaComposer) -> None:
    made = [lower(composer, shape) for shape in shapes(composer.geometry)]
    assert len(made) == (3 * 7 + 3 + 1) + (7 + 3) + (7 + 3) + 7 + 1
    drafter = composer.geometry.drafter
    assert drafter is not None
    for program in made:
        regions = {region.name: region.nbytes for region in written(program).regions}
        assert list(regions) == ["weights", "kv", "io", "state", "factors", "taps", "draft_kv", "seen", "scratch"]
        assert (regions["taps"], regions["draft_kv"]) == (drafter.tap_bytes, drafter.page_bytes)
    named = {shape.name for shape in shapes(composer.geometry) if shape.kinds[0] in DRAFTER_KINDS}
    buckets = (*BUCKETS, 64, 128, 256)
    assert named == {f"draft-{0 if rows > 32 else 256}-{rows}" for rows in buckets} | {f"sync-0-{n}" for n in buckets}


def test_a_pass_with_taps_has_no_launch_more_than_one_without(
    model: tuple[str, str], composer: CudaComposer, tmp_path: Path
) -> None:
    """The norm in front of the head is another kernel, and nothing else is."""
    plain = lowered.composer(tmp_path, *model)
    for shape in (Shape(EXTEND, 256, 1), Shape(TREE, 256, 16), Shape(EXTEND, 0, 128), Shape((Kind.COMMIT,), 0, 0)):
        tapped = list(lower(composer, shape).launches)
        if shape.kinds != (Kind.COMMIT,):
            place = names(tapped).index("add_rms_norm_taps")
            assert names(tapped)[place:] == ["add_rms_norm_taps", "linear", "argmax_partial", "argmax_gap"]
            launch, rows = tapped[place], shape.rows
            assert launch.work is not None and launch.work.grid == (rows + min(rows, 32), 1, 1)
            assert (argument(launch, "ring").place, argument(launch, "ring").extent) == ("taps", 4 * RING * 48)
            io = IoLayout(composer.geometry).fields
            for name, field in (("row", "output_row"), ("tap_out", "tap_out"), ("num_rows", "counts")):
                assert (argument(launch, name).place, argument(launch, name).offset) == ("io", io[field].offset)
            assert argument(launch, "count").offset == io["counts"].offset + 4
            assert argument(launch, "y").dtype == composer.profile.matrix and argument(launch, "ring").dtype == "fp32"
            assert constant(launch, "RING_STRIDE") == 48 and constant(launch, "OUTPUTS") == min(rows, 32)
        others = ["add_rms_norm" if name == "add_rms_norm_taps" else name for name in names(tapped)]
        assert others == names(list(lower(plain, shape).launches))


def test_a_draft_is_read_in_the_order_of_the_layer(composer: CudaComposer) -> None:
    entrance = ["rms_norm", "linear", "rms_norm", "linear", "add_rms_norm", "linear"]
    block = [*entrance, "rms_norm", "rms_norm", "rotary_kv_write", "attention_split", "attention_merge"]
    ends = ["sigmoid_gate", "linear", "add_rms_norm", "linear", "linear", "add_rms_norm_taps", "linear"]
    assert names(list(lower(composer, Shape(DRAFT, 256, 8)).launches)) == [*block, *ends, "top_k_partial", "top_k"]
    # What only queries need is left out of a sync, and so is all behind the cache.
    known = [*entrance, "rms_norm", "rotary", "kv_write"]
    assert names(list(lower(composer, Shape(SYNC, 0, 8)).launches)) == known
    long = names(list(lower(composer, Shape(DRAFT, 0, 128)).launches))
    assert "attention_chunk" in long and "attention_split" not in long and len(long) == 19


@pytest.mark.parametrize("shape", [Shape(DRAFT, 256, 8), Shape(DRAFT, 0, 64), Shape(SYNC, 0, 16)], ids=str)
def test_keys_and_values_go_to_pages_of_the_drafters_own(composer: CudaComposer, shape: Shape) -> None:
    drafter, item = composer.geometry.drafter, composer.profile.cache.itemsize
    assert drafter is not None
    found = lower(composer, shape)
    cached = [launch for launch in found.launches if "k_cache" in launch.arguments]
    assert len(cached) == (1 if shape.kinds == SYNC or shape.rows > 32 else 2) + (shape.rows > 32)
    for launch in cached:
        k, v = argument(launch, "k_cache"), argument(launch, "v_cache")
        assert (k.place, v.place, k.offset) == ("draft_kv", "draft_kv", 0)
        assert v.offset == k.extent and v.offset + v.extent == drafter.page_bytes
        assert constant(launch, "PAGE") == drafter.page_bytes // item
    touched = {operand.place for launch in found.launches for operand in launch.operands("in", "out", "both")}
    assert not touched & {"kv", "state", "factors"}


def test_rows_read_their_embeddings_and_taps_in_the_norms_in_front_of_products(composer: CudaComposer) -> None:
    io = IoLayout(composer.geometry).fields
    for shape in (Shape(DRAFT, 256, 8), Shape(SYNC, 0, 64)):
        embedded, tapped, *_ = of(lower(composer, shape), "rms_norm")
        assert argument(embedded, "x").dtype == composer.profile.table and constant(embedded, "X_STRIDE") == 48
        assert argument(embedded, "row").offset == io["token"].offset and argument(tapped, "x").place == "taps"
        assert argument(tapped, "row").offset == io["tap"].offset
        assert constant(tapped, "X_STRIDE") == 48 and argument(tapped, "count").offset == io["counts"].offset


def test_guesses_come_back_in_front_of_the_logits(composer: CudaComposer) -> None:
    io = IoLayout(composer.geometry).fields
    (launch,) = of(lower(composer, Shape(DRAFT, 256, 8)), "top_k")
    for name, field in (("token", "draft_token"), ("logit", "draft_logit"), ("lse", "draft_lse"), ("logits", "logits")):
        assert (argument(launch, name).place, argument(launch, name).offset) == ("io", io[field].offset)
    order = [io[name].offset for name in ("gap", "draft_token", "draft_logit", "draft_lse", "logits")]
    assert order == sorted(order) and list(io)[-1] == "logits"
    assert (constant(launch, "TOP"), constant(launch, "CHUNKS")) == (2, 1)


def test_what_lies_between_two_drafts_of_a_chain_is_one_launch(composer: CudaComposer) -> None:
    """Over fields of io alone, each at its place; three of four guesses are kept there."""
    found, io = lower(composer, Shape(NEXT, 0, 0)), IoLayout(composer.geometry).fields
    (launch,) = found.launches
    assert launch.kernel == "chain_next" and launch.work is not None and launch.work.grid == (1, 1, 1)
    for name, value in launch.arguments.items():
        assert isinstance(value, Operand) and (value.place, value.offset) == ("io", io[name].offset)
        assert value.extent == io[name].nbytes and value.dtype == {"int32": "int32", "float32": "fp32"}[io[name].dtype]
    assert io["chain_token"].shape == io["chain_logit"].shape == (3, 32, 2) and io["chain_lse"].shape == (3, 32)
    order = [io[name].offset for name in ("gap", "chain_token", "chain_logit", "chain_lse", "draft_token", "logits")]
    assert order == sorted(order)
    assert (constant(launch, "OUTPUTS"), constant(launch, "TOP")) == (32, 2)


def test_a_program_goes_for_its_own_kind_alone(composer: CudaComposer) -> None:
    layout = IoLayout(composer.geometry)
    for kinds in (DRAFT, SYNC, EXTEND, TREE, NEXT):
        program = written(lower(composer, Shape(kinds, 0 if kinds in (SYNC, NEXT) else 256, 8)))
        for kind in (Kind.DRAFT, Kind.SYNC, Kind.EXTEND, Kind.VERIFY_TREE, Kind.COMMIT, Kind.SAMPLE, Kind.NEXT):
            if kind in kinds:
                roles.check(kind, program, layout, "this")
                continue
            with pytest.raises(BundleCorrupt, match=rf"^this: its program takes .* {kind} does; rebuild the bundle"):
                roles.check(kind, program, layout, "this")


def test_two_lowerings_give_the_same_bytes(composer: CudaComposer) -> None:
    for shape in (Shape(DRAFT, 256, 2), Shape(SYNC, 0, 32)):
        assert encode(written(lower(composer, shape))) == encode(written(lower(composer, shape)))


def ends(i: Inputs, w: Weights, *, again: bool = False, total: bool = False, norms: bool = False) -> tuple[Tensor, ...]:
    """A norm whose rows go to a ring (here `z`) and of which some are picked."""
    h, normed = add_rms_norm(i.x, linear(i.x, w.square, None), w.vector, 1e-6)
    scatter_rows(normed, i.z, i.position)
    more = (linear(normed, w.square, None),) if again else (linear(h, w.square, None),) if total else ()
    picked = gather_rows(h if norms else normed, i.output_row)
    return linear(picked, w.square, None), *more


CASES: dict[str, tuple[Callable[[Inputs, Weights], tuple[Tensor, ...]], list[str]]] = {
    "nothing else reads": (ends, ["add_rms_norm_taps"]),
    "all rows are read besides": (lambda i, w: ends(i, w, again=True), ["add_rms_norm", "scatter_rows", "gather_rows"]),
    "the sum is read besides": (lambda i, w: ends(i, w, total=True), ["add_rms_norm", "scatter_rows", "gather_rows"]),
    "rows of the sum are picked": (
        lambda i, w: ends(i, w, norms=True),
        ["add_rms_norm", "scatter_rows", "gather_rows"],
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_a_norm_takes_its_ends_along_where_nothing_else_reads_it(case: str) -> None:
    function, wanted = CASES[case]
    assert sorted(set(names(launches(function))) - {"linear", "add_parts"}) == sorted(wanted)


def test_what_nobody_reads_is_not_launched() -> None:
    def unread(i: Inputs, w: Weights) -> Tensor:
        rms_norm(linear(i.x, w.square, None), w.vector, 1e-6)
        return linear(i.x, w.square, None)

    assert names(launches(unread)) == ["linear"]


def test_a_norm_reads_rows_that_are_picked_for_it_alone() -> None:
    def picked(i: Inputs, w: Weights) -> tuple[Tensor, ...]:
        rows = gather_rows(i.x, i.output_row)
        return rms_norm(rows, w.vector, 1e-6), rms_norm(gather_rows(i.z, i.output_row), w.vector, 1e-6), rows

    found = launches(picked)
    assert names(found) == ["gather_rows", "rms_norm", "rms_norm"]
    first, second = found[1:]
    assert first.arguments["row"] is None and isinstance(second.arguments["row"], Operand)
    assert argument(second, "count").offset == argument(first, "count").offset  # that of outputs, for both
