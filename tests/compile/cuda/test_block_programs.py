"""Programs of a block drafter for a GPU as written down: what is launched in which order, and where arguments lie."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tandem.artifacts.io import IoLayout
from tandem.artifacts.program import encode
from tandem.compile.cuda.composer import CudaComposer
from tandem.compile.cuda.entries import Shape, shapes
from tandem.compile.cuda.programs import lower
from tandem.errors import BundleCorrupt
from tandem.keys import DRAFTER_KINDS, Kind
from tandem.runtime.executor import roles
from tests.compile.cuda import lowered
from tests.compile.cuda.lowered import argument, constant, names
from tests.compile.cuda.test_draft_programs import of, written
from tests.tiny import make_checkpoint
from tests.tiny_drafter import BLOCK, TOP, WINDOW, drafter_config

DRAFT, SYNC, EXTEND, TREE = (Kind.DRAFT,), (Kind.SYNC,), (Kind.EXTEND,), (Kind.VERIFY_TREE,)
TAPPED = 2


@pytest.fixture(scope="module", params=[("llama", "bf16"), ("qwen3_5-odd", "fp32")], ids="-".join)
def model(request: pytest.FixtureRequest) -> tuple[str, str]:
    """Family and profile; the hybrid's drafter reads what leaves layers of both types."""
    return request.param  # type: ignore[no-any-return]


@pytest.fixture(scope="module")
def config(model: tuple[str, str], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return drafter_config(make_checkpoint(tmp_path_factory.mktemp("target") / "checkpoint", model[0]))


@pytest.fixture(scope="module")
def composer(model: tuple[str, str], config: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> CudaComposer:
    return lowered.composer(tmp_path_factory.mktemp("drafter"), *model, block=config)


def test_every_program_can_be_written(composer: CudaComposer, config: dict[str, Any]) -> None:
    g = composer.geometry
    made = {shape.name: written(lower(composer, shape)) for shape in shapes(g)}
    assert g.drafter is not None and g.drafter.block is not None
    # In a pass of 256 rows there is room for a block of every lane.
    assert (g.draft_lanes, g.max_outputs, g.drafter.top, g.drafter.block.rows) == (8, 8 * (BLOCK - 1), TOP, BLOCK)
    for program in made.values():
        regions = {region.name: region.nbytes for region in program.regions}
        assert (regions["taps"], regions["draft_kv"]) == (g.drafter.tap_bytes, g.drafter.page_bytes)
    named = {name for name in made if name.split("-")[0] in {kind.value for kind in DRAFTER_KINDS}}
    buckets = (1, 2, 4, 8, 16, 24, 32, 64, 128, 256)
    assert named == {f"draft-0-{BLOCK * n}" for n in (1, 2, 4, 8)} | {f"sync-0-{n}" for n in buckets}
    assert len(config["dflash_config"]["target_layer_ids"]) == TAPPED and g.drafter.tap_width == TAPPED * 48


def test_a_draft_is_read_in_the_order_of_the_block(composer: CudaComposer) -> None:
    attended = ["linear", "block_conv", "linear", "rms_norm", "linear", "rms_norm", "rotary_kv_write"]
    attended += ["block_attention_split", "block_attention_merge", "linear", "block_conv", "add_rms_norm"]
    layer = [*attended, "linear", "block_conv", "linear", "linear", "block_conv"]
    whole = ["embedding", "rms_norm", *layer, "add_rms_norm", *layer]
    ends = ["add_rms_norm", "linear", "top_k_partial", "top_k", "linear", "lattice_scores", "lattice_walk"]
    assert names(list(lower(composer, Shape(DRAFT, 0, BLOCK)).launches)) == [*whole, *ends]
    many = names(list(lower(composer, Shape(DRAFT, 0, 8 * BLOCK)).launches))
    assert [name.replace("_chunk", "") for name in many] == [*whole, *ends]
    known = ["gather_rows", "linear", "rms_norm", *["linear", "rms_norm", "rotary", "kv_write"] * 2]
    assert names(list(lower(composer, Shape(SYNC, 0, 8)).launches)) == known


def test_a_pass_leaves_its_streams_where_the_drafter_reads_them(
    model: tuple[str, str], composer: CudaComposer, tmp_path: Path
) -> None:
    """A launch more for each stream, in front of the norm of the layer that it enters, and nothing else is changed."""
    plain, io = lowered.composer(tmp_path, *model), IoLayout(composer.geometry).fields
    for shape in (Shape(EXTEND, 256, 1), Shape(TREE, 256, 16), Shape(EXTEND, 0, 128)):
        found = lower(composer, shape)
        taps = of(found, "scatter_sum")
        assert len(taps) == TAPPED
        assert [name for name in names(list(found.launches)) if name != "scatter_sum"] == names(
            list(lower(plain, shape).launches)
        )
        for i, launch in enumerate(taps):
            ring = argument(launch, "ring")
            assert (ring.place, ring.offset, constant(launch, "RING_STRIDE")) == ("taps", 4 * 48 * i, TAPPED * 48)
            assert argument(launch, "tap_out").offset == io["tap_out"].offset
            assert argument(launch, "count").offset == io["counts"].offset
            after = found.launches[list(found.launches).index(launch) + 1]
            assert after.kernel == "add_rms_norm"
            assert [after.arguments[name] for name in ("x", "delta")] == [
                launch.arguments[name] for name in ("x", "delta")
            ]


def test_keys_and_values_go_to_pages_of_the_drafters_own(composer: CudaComposer) -> None:
    drafter, item = composer.geometry.drafter, composer.profile.cache.itemsize
    assert drafter is not None
    for shape in (Shape(DRAFT, 0, 4 * BLOCK), Shape(SYNC, 0, 16), Shape(SYNC, 0, 64)):
        found = lower(composer, shape)
        cached = [launch for launch in found.launches if "k_cache" in launch.arguments]
        assert len(cached) == 2 * (1 if shape.kinds == SYNC else 2)
        places = sorted({(argument(launch, f"{part}_cache").offset) for launch in cached for part in "kv"})
        assert places == [i * drafter.page_bytes // 4 for i in range(4)]
        for launch in cached:
            assert argument(launch, "k_cache").place == argument(launch, "v_cache").place == "draft_kv"
            assert constant(launch, "PAGE") == drafter.page_bytes // item
        touched = {operand.place for launch in found.launches for operand in launch.operands("in", "out", "both")}
        assert not touched & {"kv", "state", "factors"}
    for launch in of(lower(composer, Shape(DRAFT, 0, BLOCK)), "block_attention_split"):
        assert (constant(launch, "BLOCK"), constant(launch, "WINDOW"), constant(launch, "SPANS")) == (BLOCK, WINDOW, 2)


def test_positions_turn_by_tables_of_its_own(composer: CudaComposer) -> None:
    offset = composer.weights.offset
    for shape in (Shape(DRAFT, 0, BLOCK), Shape(SYNC, 0, 8)):
        for launch in lower(composer, shape).launches:
            if "cos" in launch.arguments:
                assert argument(launch, "cos").offset not in (offset("rope.cos"), offset("rope.sin"))
                assert constant(launch, "HALF") == 5


def test_guesses_come_back_in_front_of_the_logits(composer: CudaComposer) -> None:
    io = IoLayout(composer.geometry).fields
    *_, top, _gate, scores, walk = lower(composer, Shape(DRAFT, 0, BLOCK)).launches
    given = {"token": top, "logit": top, "lse": top, "score": scores, "greedy": walk}
    fields = ["draft_token", "draft_logit", "draft_lse", "draft_score", "draft_walk"]
    for (name, launch), field in zip(given.items(), fields, strict=True):
        assert (argument(launch, name).place, argument(launch, name).offset) == ("io", io[field].offset)
    assert argument(scores, "candidate").offset == io["draft_token"].offset
    assert argument(scores, "unary").offset == io["draft_logit"].offset
    assert argument(walk, "score").offset == io["draft_score"].offset
    for launch in (scores, walk):
        for name in ("output_row", "position", "prefix"):
            assert argument(launch, name).offset == io[name].offset
    # Scores are many: behind all else, so that those of the rows at hand alone are copied.
    order = [io[name].offset for name in ("gap", *fields[:3], "draft_walk", "draft_score", "logits")]
    assert order == sorted(order) and list(io)[-1] == "logits"


def test_a_program_goes_for_its_own_kind_alone(composer: CudaComposer) -> None:
    layout = IoLayout(composer.geometry)
    for shape in (Shape(DRAFT, 0, BLOCK), Shape(SYNC, 0, 8), Shape(EXTEND, 256, 8), Shape(TREE, 256, 8)):
        program = written(lower(composer, shape))
        for kind in (Kind.DRAFT, Kind.SYNC, Kind.EXTEND, Kind.VERIFY_TREE, Kind.COMMIT, Kind.SAMPLE):
            if kind in shape.kinds:
                roles.check(kind, program, layout, "this")
                continue
            with pytest.raises(BundleCorrupt, match=rf"^this: its program takes .* {kind} does; rebuild the bundle"):
                roles.check(kind, program, layout, "this")


def test_two_lowerings_give_the_same_bytes(composer: CudaComposer) -> None:
    for shape in (Shape(DRAFT, 0, 2 * BLOCK), Shape(SYNC, 0, 32)):
        assert encode(written(lower(composer, shape))) == encode(written(lower(composer, shape)))
