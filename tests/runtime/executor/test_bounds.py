"""Programs that lie, sound by their digests: each is refused by name before anything runs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tandem.artifacts.io import Geometry, IoLayout
from tandem.artifacts.program import CONSTANT, LAUNCH, PARAM, Program, Region
from tandem.compile.cpu.panels import stored_bytes
from tandem.compile.profile import Format
from tandem.device import this_machine
from tandem.errors import BundleCorrupt, BundleMismatch
from tandem.keys import TARGET_KINDS, Kind
from tandem.runtime.executor.bounds import check
from tandem.runtime.executor.cpu import CpuExecutor, Image
from tandem.runtime.executor.library import Library
from tests.compile.models import oracle
from tests.kernels.harness import library
from tests.staged import Staged, stage
from tests.tiny import make_checkpoint


@pytest.fixture(scope="module")
def staged(tmp_path_factory: pytest.TempPathFactory) -> Staged:
    folder = make_checkpoint(tmp_path_factory.mktemp("bounds") / "qwen2", "qwen2")
    return stage(oracle.read_config(folder), oracle.read_tensors(folder), "bf16", folder)


@pytest.fixture(scope="module")
def signatures() -> Callable[[Program], list[tuple[str, ...]]]:
    team = Library(library(), 1)
    return lambda program: [team.signature(kernel.symbol) for kernel in program.kernels]


Signatures = Callable[[Program], list[tuple[str, ...]]]


def edited(program: Program, signatures: Signatures, kernel: str, word: str, **values: int) -> Program:
    """`program` with fields of one argument of the first launch of `kernel` set."""
    which = [k.symbol for k in program.kernels].index(f"tdm_{kernel}")
    launch = next(launch for launch in program.launches if launch["kernel"] == which)
    params = program.params.copy()
    for name, value in values.items():
        params[name][launch["first_param"] + signatures(program)[which].index(word)] = value
    return replace(program, params=params)


def region(program: Program, name: str) -> int:
    return [r.name for r in program.regions].index(name)


@pytest.mark.parametrize("kind", TARGET_KINDS)
def test_sealed_programs_are_inside(staged: Staged, signatures: Signatures, kind: Kind) -> None:
    program = staged.programs[kind]
    check(program, signatures(program), staged.composer.geometry)


@pytest.mark.parametrize(
    ("kernel", "word", "values", "line"),
    [
        ("linear_bf16", "=n", {"value": 1 << 30}, "ends at byte"),
        ("linear_bf16", "=k", {"value": (1 << 64) - 1}, "k is no number in range"),
        ("linear_bf16", "=n", {"region": 0}, "n is no number"),
        ("linear_bf16", ">y", {"region": CONSTANT}, "y points nowhere"),
        ("linear_bf16", "<bias", {"region": CONSTANT, "value": 8}, "bias points nowhere"),
        ("linear_bf16", ">y", {"region": 0}, "y is in weights, not in scratch"),
        ("linear_bf16", "<weight", {"region": 3, "value": 0}, "weight is in scratch, not in weights"),
        ("attention_tree_bf16", "<k_cache", {"region": 3, "value": 0}, "k_cache is in scratch, not in kv"),
        ("linear_bf16", "<count", {"value": 64}, "count is byte 64 of io"),
        ("linear_bf16", "=x_stride", {"value": 1 << 20}, "x ends at byte"),
        ("embedding_bf16", "=k", {"value": 1 << 16}, "weight ends at byte"),
        ("embedding_bf16", "<token", {"region": 0}, "token is in weights, not in io"),
        ("rotary_kv_write_bf16", "<sin", {"value": 1 << 18}, "sin ends at byte"),
        ("rotary_kv_write_bf16", "=page_bytes", {"value": 64}, "page_bytes is 64, the geometry gives"),
        ("rotary_kv_write_bf16", "=table_stride", {"value": 0}, "table_stride is 0"),
        ("rotary_kv_write_bf16", "!k_cache", {"value": 27584}, "k_cache ends at byte"),
        ("attention_tree_bf16", "=kv_heads", {"value": 0}, "kv_heads is no number in range"),
        ("linear_bf16", "=k", {"value": 0}, "k is no number in range"),
        ("linear_bf16", "=x_stride", {"value": 0}, "x_stride is 0, a row has 48"),
        ("linear_bf16", "<weight", {"value": 2}, "weight is byte 2 of weights, no multiple of 4"),
        ("attention_tree_bf16", "=kv_heads", {"value": 4}, "kv_heads is 4, which does not divide"),
        ("attention_tree_bf16", "=ancestor_stride", {"value": 1}, "ancestor_stride is 1"),
        ("attention_tree_bf16", "=heads", {"value": 99999}, "q_stride is .*, a row has"),
        ("gather_rows", "<row", {"value": 0}, "row is byte 0 of io"),
        ("argmax_gap", "=width", {"value": 334}, "width is 334, the vocabulary has 333"),
        ("argmax_gap", "<count", {"value": 0}, "argmax has 32 entries for 64 rows"),
        ("gather_rows", "<count", {"value": 0}, "row has 32 entries for 64 rows"),
    ],
)
def test_a_launch_that_reaches_outside_is_named(
    staged: Staged, signatures: Signatures, kernel: str, word: str, values: dict[str, int], line: str
) -> None:
    program = edited(staged.programs[Kind.VERIFY_TREE], signatures, kernel, word, **values)
    with pytest.raises(BundleCorrupt, match=f"launch .*, tdm_{kernel}: .*{line}"):
        check(program, signatures(program), staged.composer.geometry)


@pytest.mark.parametrize("layer", [0, 1, -1])
def test_a_single_launch_among_its_like_is_found(staged: Staged, signatures: Signatures, layer: int) -> None:
    program = staged.programs[Kind.EXTEND]
    which = [k.symbol for k in program.kernels].index("tdm_linear_bf16")
    place = [i for i, launch in enumerate(program.launches) if launch["kernel"] == which][layer]
    params = program.params.copy()
    argument = program.launches[place]["first_param"] + signatures(program)[which].index("<weight")
    params["value"][argument] = staged.weights.data.nbytes - 64
    with pytest.raises(BundleCorrupt, match=f"launch {place}, tdm_linear_bf16: weight ends at byte"):
        check(replace(program, params=params), signatures(program), staged.composer.geometry)


def test_arguments_are_as_many_as_the_kernel_takes(staged: Staged, signatures: Signatures) -> None:
    program = staged.programs[Kind.EXTEND]
    kernels = tuple(replace(kernel, param_sizes=kernel.param_sizes[1:]) for kernel in program.kernels)
    with pytest.raises(BundleCorrupt, match=r"takes \d+ arguments, not \d+"):
        check(replace(program, kernels=kernels), signatures(program), staged.composer.geometry)


Argument = int | float | None | tuple[str, int]


def single(staged: Staged, signatures: Signatures, kernel: str, **arguments: Argument) -> Program:
    """A program of one launch: numbers, (region, offset) and None for a null pointer. 64 rows, 64 floats apart."""
    program, given = staged.programs[Kind.EXTEND], {"count": ("io", 0)} | arguments
    called = replace(program.kernels[0], symbol=f"tdm_{kernel}", param_sizes=(8,) * len(given))
    one = replace(program, kernels=(called,))
    params = np.zeros(len(given), PARAM)
    for param, word in zip(params, signatures(one)[0], strict=True):
        value = given[word[1:]]
        where = (region(program, value[0]), 1, value[1]) if isinstance(value, tuple) else (CONSTANT, 0, int(value or 0))
        param["region"], param["alignment"], param["value"] = where
    return replace(one, launches=np.array([(0, 0, len(given), 0, (0, 0, 0), (0, 0, 0), 0)], LAUNCH), params=params)


ROW: dict[str, Argument] = {"x": ("scratch", 0), "x_stride": 64, "y": ("scratch", 0), "y_stride": 64}
NORM: dict[str, Argument] = ROW | {"delta": ("scratch", 0), "delta_stride": 64, "sum": ("scratch", 0), "sum_stride": 64}
NORM |= {"weight": ("weights", 0), "width": 48, "eps": 0}
PRODUCT: dict[str, Argument] = NORM | {"norm": ("weights", 0), "bias": ("weights", 0), "n": 64, "k": 48, "gated": 0}
del PRODUCT["width"]
WRITE: dict[str, Argument] = {
    **ROW, "cos": ("weights", 0), "sin": ("weights", 0), "position": ("io", 320), "heads": 2, "head_dim": 24, "half": 8,
}  # fmt: skip


@pytest.mark.parametrize(
    ("kernel", "sound", "lie", "line"),
    [
        ("add_rms_norm", NORM, {"delta": None, "sum": None}, "delta points nowhere"),
        ("add_rms_norm", NORM, {"weight": ("weights", 1)}, "weight is byte 1 of weights, no multiple of 4"),
        ("linear_int8", PRODUCT, {"delta": None}, "delta and sum come together"),
        ("linear_int8", PRODUCT, {"sum": None}, "delta and sum come together"),
        ("linear_int8", PRODUCT, {"norm": ("scratch", 0)}, "norm is in scratch, not in weights"),
        ("linear_int8", PRODUCT, {"k": 0}, "k is no number in range"),
        ("linear_int8", PRODUCT, {"k": 65}, "x_stride is 64, a row has 65"),
        ("linear_int8", PRODUCT | {"bias": None}, {"n": 96, "gated": 1}, "n is 96, no whole panels of gates"),
        ("linear_int8", PRODUCT, {"gated": 1}, "a gated product takes no bias"),
        ("linear_int8", PRODUCT, {"n": 96}, "y_stride is 64, a row has 96"),
        ("linear_int4", PRODUCT, {"n": 1 << 22, "y_stride": 1 << 22}, "weight ends at byte"),
        ("rotary", WRITE, {"half": 13}, "head_dim is 24, of which 26 turn"),
        ("rotary", WRITE, {"heads": 1, "head_dim": 257}, "head_dim is 257, of which 16 turn"),
    ],
)
def test_lies_of_several_arguments(
    staged: Staged,
    signatures: Signatures,
    kernel: str,
    sound: dict[str, Argument],
    lie: dict[str, Argument],
    line: str,
) -> None:
    program = single(staged, signatures, kernel, **sound)
    check(program, signatures(program), staged.composer.geometry)
    program = single(staged, signatures, kernel, **sound | lie)
    with pytest.raises(BundleCorrupt, match=f"launch 0, tdm_{kernel}: {line}"):
        check(program, signatures(program), staged.composer.geometry)


def test_passes_too_small_for_a_verify(staged: Staged, signatures: Signatures) -> None:
    program = staged.programs[Kind.EXTEND]
    with pytest.raises(BundleCorrupt, match="passes of 31 outputs, a verify wants 32"):
        check(program, signatures(program), replace(staged.composer.geometry, max_outputs=31))


def test_gathered_rows_may_be_any_of_the_pass(staged: Staged, signatures: Signatures) -> None:
    """32 outputs, but the last of 64 rows may be among them."""
    fields = IoLayout(staged.composer.geometry).fields
    rows = ROW | {"count": ("io", 4), "row": ("io", fields["output_row"].offset), "width": 64}
    program = single(staged, signatures, "gather_rows", **rows)
    size = program.regions[region(program, "scratch")].nbytes
    for last in (64, 63):
        gathered = single(staged, signatures, "gather_rows", **rows | {"x": ("scratch", size - 4 * 64 * last)})
        if last == 64:
            check(gathered, signatures(gathered), staged.composer.geometry)
        else:
            with pytest.raises(BundleCorrupt, match="x ends at byte"):
                check(gathered, signatures(gathered), staged.composer.geometry)


def test_a_kernel_without_bounds_is_not_run(staged: Staged, signatures: Signatures) -> None:
    program = single(staged, signatures, "add_rms_norm", **NORM)
    unknown = replace(program, kernels=(replace(program.kernels[0], symbol="tdm_blend"),))
    with pytest.raises(BundleCorrupt, match="launch 0, tdm_blend: x has no bounds"):
        check(unknown, signatures(program), staged.composer.geometry)


def executor(staged: Staged, programs: dict[Kind, Program], **sizes: Any) -> CpuExecutor:
    geometry: Geometry = replace(staged.composer.geometry, **sizes)
    return CpuExecutor(Image(geometry, staged.weights.data, Library(library(), 1), programs), num_pages=2)


@pytest.mark.parametrize(
    ("sizes", "line"),
    [
        ({"vocab_size": 10_000}, "bytes of io"),
        ({"max_rows": 65}, "bytes of io"),
        ({"max_lanes": 400}, "bytes of io"),
        ({"context_length": 10_000}, "bytes of io"),
        ({"context_length": 288}, "(cos|sin) ends at byte"),  # as many blocks, so the same io
        ({"page_bytes": 128}, "bytes of kv, not 128"),
        ({"page_tokens": 32, "context_length": 112}, "pages of 32 tokens, kernels know those of 64"),  # as many blocks
    ],
)
def test_a_geometry_that_programs_were_not_made_for(staged: Staged, sizes: dict[str, int], line: str) -> None:
    with pytest.raises(BundleCorrupt, match=line):
        executor(staged, staged.programs, **sizes)


def test_more_than_memory_is_refused_before_it_is_asked_for(staged: Staged) -> None:
    program = staged.programs[Kind.EXTEND]
    greedy = tuple(r if r.name != "scratch" else Region("scratch", 1 << 62) for r in program.regions)
    memory = str(this_machine().memory)
    with pytest.raises(BundleMismatch, match=memory):
        executor(staged, {Kind.EXTEND: replace(program, regions=greedy)})
    with pytest.raises(BundleMismatch, match=memory):
        executor(staged, staged.programs, page_bytes=1 << 62)
    with pytest.raises(BundleMismatch, match=memory):
        executor(staged, staged.programs, vocab_size=2**31 - 1, max_outputs=2**31 - 1)


def test_no_position_reads_past_the_end_of_the_weights(staged: Staged, signatures: Signatures) -> None:
    """The sines are the file's last tensor."""
    geometry = staged.composer.geometry
    program = staged.programs[Kind.EXTEND]
    weights = region(program, "weights")
    cut = list(program.regions)
    cut[weights] = replace(cut[weights], nbytes=cut[weights].nbytes - 64)
    with pytest.raises(BundleCorrupt, match="sin ends at byte"):
        check(replace(program, regions=tuple(cut)), signatures(program), geometry)


@pytest.mark.parametrize("form", ["fp32", "bf16", "int8", "int4"])
@pytest.mark.parametrize(("n", "k"), [(1, 1), (33, 48), (64, 31), (17, 33)])
def test_a_matrix_ends_where_its_layout_says(
    staged: Staged, signatures: Signatures, form: Format, n: int, k: int
) -> None:
    """To the word."""
    end = staged.weights.data.nbytes - stored_bytes((n, k), form)
    given = PRODUCT | {"norm": None, "bias": None, "n": n, "k": k}
    program = single(staged, signatures, f"linear_{form}", **given | {"weight": ("weights", end)})
    check(program, signatures(program), staged.composer.geometry)
    program = single(staged, signatures, f"linear_{form}", **given | {"weight": ("weights", end + 4)})
    with pytest.raises(BundleCorrupt, match=f"tdm_linear_{form}: weight ends at byte"):
        check(program, signatures(program), staged.composer.geometry)
