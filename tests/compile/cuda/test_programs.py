"""Programs for a GPU as written down: each argument where it was put, each kernel once, one chain of launches."""

from __future__ import annotations

import hashlib
from collections.abc import Callable

import pytest

from tandem.artifacts.io import IoLayout
from tandem.artifacts.program import CONSTANT, PROGRAMMATIC, Program, decode, encode
from tandem.compile.assembly import Buffer, Operand
from tandem.compile.compose import Composer
from tandem.compile.cuda.entries import Shape, shapes
from tandem.compile.cuda.programs import Lowered, encode_program, lower, variant_of
from tandem.compile.trace import trace_pass
from tandem.errors import BundleCorrupt
from tandem.kernels.cuda.build import Variant
from tandem.kernels.cuda.table import KERNELS
from tandem.keys import TARGET_KINDS, Kind
from tandem.runtime.executor import roles
from tests.compile.cuda import lowered
from tests.compile.cuda.lowered import HIDDEN, fake

SHAPES = {
    "step": Shape((Kind.EXTEND, Kind.VERIFY_CHAIN), 256, 1),
    "tree": Shape((Kind.VERIFY_TREE,), 256, 16),
    "chunk": Shape((Kind.EXTEND,), 0, 128),
    "commit": Shape((Kind.COMMIT,), 0, 0),
    "sample": Shape((Kind.SAMPLE,), 0, 8),
}


@pytest.fixture(scope="module")
def composer(tmp_path_factory: pytest.TempPathFactory) -> Composer:
    return lowered.composer(tmp_path_factory.mktemp("programs"), "qwen3")


@pytest.fixture(scope="module", params=SHAPES)
def low(request: pytest.FixtureRequest, composer: Composer) -> Lowered:
    return lower(composer, SHAPES[request.param])


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def written(low: Lowered, data: Callable[[Variant], object] = repr) -> Program:
    """The program, through the file's bytes and their checks."""
    cubins = {variant: fake(variant, data=data) for variant in low.variants()}
    return decode(encode(encode_program(low, cubins, sha256)), "x")


def test_regions_are_those_of_the_model(composer: Composer, low: Lowered) -> None:
    regions = {region.name: region for region in written(low).regions}
    assert list(regions) == ["weights", "kv", "io", "seen", "scratch"]
    assert {region.alignment for region in regions.values()} == {64}
    sizes = [regions[name].nbytes for name in ("weights", "kv", "io")]
    assert regions["seen"].nbytes == 8 * composer.geometry.vocab_size * 4
    io = IoLayout(composer.geometry).nbytes
    # qwen3: 3 layers of 2 kv heads of 20, K and V in bf16, 64 tokens a page.
    assert sizes == [len(composer.weights.data), 3 * 2 * 64 * 2 * 20 * 2, io]
    assert (regions["scratch"].nbytes == 0) == (low.shape.kinds == (Kind.COMMIT,))


def test_arguments_are_where_they_were_put(low: Lowered) -> None:
    program = written(low)
    names = [region.name for region in program.regions]
    for line, launch in zip(program.launches, low.launches, strict=True):
        first, count = int(line["first_param"]), int(line["num_params"])
        params = program.params[first : first + count]
        given = [launch.arguments[param.name] for param in KERNELS[launch.kernel].signature]
        pointers = [value for value in given if isinstance(value, Operand)]
        assert len(params) == len(pointers) + HIDDEN
        for param, operand in zip(params, pointers, strict=False):
            inside = isinstance(operand.place, Buffer)
            base = operand.place.offset if isinstance(operand.place, Buffer) else 0
            assert names[param["region"]] == ("scratch" if inside else operand.place)
            assert param["value"] == base + operand.offset
            # A buffer may be touched to its end, also beside the columns that a view of it names.
            extent = operand.place.nbytes - operand.offset if isinstance(operand.place, Buffer) else operand.extent
            assert param["extent"] == extent > 0
            assert param["value"] + param["extent"] <= program.regions[param["region"]].nbytes
        for param in params[len(pointers) :]:
            assert (param["region"], param["value"], param["extent"]) == (CONSTANT, 0, 0)


def test_a_kernel_is_compiled_for_the_alignment_that_its_arguments_have(low: Lowered) -> None:
    program, seen = written(low), set()
    for line, launch in zip(program.launches, low.launches, strict=True):
        params = iter(program.params[int(line["first_param"]) :])
        for pointer in variant_of(launch).pointers:
            if pointer is not None:
                param = next(params)
                assert pointer.aligned == (param["value"] % 16 == 0) == (param["alignment"] >= 16)
                seen.add(pointer.aligned)
    if low.shape.kinds[0] is not Kind.COMMIT:
        assert seen == {True, False}  # counts of outputs lie four bytes behind those of rows


def test_types_of_pointers_are_those_of_what_lies_there(low: Lowered) -> None:
    for launch in low.launches:
        variant = variant_of(launch)
        for param, pointer in zip(KERNELS[launch.kernel].signature, variant.pointers, strict=True):
            value = launch.arguments[param.name]
            assert (pointer is None) == (value is None)
            assert pointer is None or (isinstance(value, Operand) and pointer.dtype == value.dtype)
            if param.name in ("weight", "k_cache", "v_cache") and "norm" not in launch.kernel:
                assert pointer is not None and pointer.dtype == "bf16"
            if param.name in ("position", "lane", "slot", "count", "block_table"):
                assert pointer is not None and pointer.dtype == "int32"


def test_each_launch_starts_behind_the_one_before(low: Lowered) -> None:
    edges = written(low).edges
    count = len(low.launches)
    assert edges["source"].tolist() == list(range(count - 1)) and edges["target"].tolist() == list(range(1, count))
    for field, value in {"from_port": 1, "to_port": 0, "type": PROGRAMMATIC}.items():
        assert (edges[field] == value).all()


def test_grids_blocks_and_shared_memory_are_the_launchs_own(low: Lowered) -> None:
    program = written(low)
    for line, launch in zip(program.launches, low.launches, strict=True):
        assert launch.work is not None
        assert tuple(line["grid"]) == launch.work.grid
        assert (tuple(line["block"]), line["shared"]) == ((32 * launch.work.num_warps, 1, 1), 1024)
        assert program.kernels[line["kernel"]].symbol == launch.kernel
    assert not program.launches["wait"].any()


def test_a_cubin_is_one_kernel_however_often_it_is_launched(low: Lowered) -> None:
    own = written(low)
    assert sorted(kernel.binary for kernel in own.kernels) == sorted({k.binary for k in own.kernels})
    assert {kernel.binary for kernel in own.kernels} == {sha256(fake(v).data) for v in low.variants()}
    assert set(own.launches["kernel"]) == set(range(len(own.kernels)))


def test_variants_that_compile_to_the_same_bytes_are_one_kernel(low: Lowered) -> None:
    def of(variant: Variant) -> object:
        return variant.kernel, sum(pointer is not None for pointer in variant.pointers)

    program = written(low, data=of)
    assert len(program.kernels) == len({of(variant) for variant in low.variants()})


def test_grids_do_not_make_kernels_of_their_own(composer: Composer) -> None:
    by_kernel: dict[str, set[Variant]] = {}
    for rows in (1, 2):
        for launch in lower(composer, Shape((Kind.EXTEND,), 256, rows)).launches:
            if launch.kernel == "embedding":
                by_kernel.setdefault(launch.kernel, set()).add(variant_of(launch))
    assert len(by_kernel["embedding"]) == 1


def test_two_lowerings_give_the_same_bytes(composer: Composer, low: Lowered) -> None:
    first = encode(written(low))
    trace_pass.cache_clear()
    assert encode(written(lower(composer, low.shape))) == first


def test_a_commit_is_one_launch_for_all_layers(composer: Composer) -> None:
    low = lower(composer, SHAPES["commit"])
    (launch,) = low.launches
    assert launch.kernel == "kv_move" and launch.work is not None
    constants = dict(launch.work.constants)
    assert constants["PAGE"] == composer.geometry.page_bytes // 2
    assert len(written(low).edges) == 0
    planes = [launch.arguments[name] for name in ("k_cache", "v_cache")]
    assert [plane.offset for plane in planes if isinstance(plane, Operand)] == [0, 64 * 2 * 20 * 2]


def test_a_step_is_read_in_the_order_of_the_model(composer: Composer) -> None:
    names = lowered.names(list(lower(composer, SHAPES["step"]).launches))
    assert names[0] == "embedding" and names[-2:] == ["argmax_partial", "argmax_gap"]
    assert names.count("attention_split") == names.count("attention_merge") == 3
    assert "swiglu" not in names and "gather_rows" not in names
    # Each layer: q, k and v with their head norms; attention's product; the gate's and the last one.
    assert names.count("linear") == 3 * 4 + 1
    tree = lowered.names(list(lower(composer, SHAPES["tree"]).launches))
    assert [n for n in tree if n != "attention_tail"] == [n for n in names if n != "attention_merge"]


def test_products_read_their_own_weights_and_no_byte_more(composer: Composer) -> None:
    found = [
        launch.arguments["weight"] for launch in lower(composer, SHAPES["step"]).launches if launch.kernel == "linear"
    ]
    names = [f"layers.{layer}.{name}" for layer in range(3) for name in ("qkv", "o", "gate_up", "down")]
    weights = composer.weights
    assert [(w.place, w.offset, w.extent) for w in found if isinstance(w, Operand)] == [
        ("weights", weights.offset(name), weights.spans[name].nbytes) for name in (*names, "head")
    ]


def test_every_program_of_a_bundle_can_be_written(composer: Composer) -> None:
    made = [lower(composer, shape) for shape in shapes(composer.geometry)]
    assert len(made) == 14 + 3 + 7 + 1  # chunks of 64, 128 and 256 rows
    wanted = {variant for program in made for variant in program.variants()}
    for program in made:
        assert len(written(program).launches) == len(program.launches)
    kernels = {variant.kernel for variant in wanted}
    assert {"linear", "linear_chunk", "attention_split", "attention_tail", "attention_chunk", "kv_move"} <= kernels
    assert kernels <= KERNELS.keys()


def test_a_program_goes_for_its_own_kinds_alone(composer: Composer, low: Lowered) -> None:
    """As a server tells them apart at load. A chunk's may verify a chain: without a state they do the same."""
    own = {*low.shape.kinds, Kind.VERIFY_CHAIN} if Kind.EXTEND in low.shape.kinds else {*low.shape.kinds}
    program, layout = written(low), IoLayout(composer.geometry)
    for kind in own:
        roles.check(kind, program, layout, "this")
    for kind in {*TARGET_KINDS} - own:
        with pytest.raises(BundleCorrupt, match=rf"^this: its program takes .* {kind} does; rebuild the bundle"):
            roles.check(kind, program, layout, "this")
