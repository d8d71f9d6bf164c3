"""Programs that lie, sound by their digests: each is refused by name before anything runs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from tandem.artifacts.io import Geometry
from tandem.artifacts.program import CONSTANT, Program, Region
from tandem.device import this_machine
from tandem.errors import BundleCorrupt, BundleMismatch
from tandem.keys import Kind
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


@pytest.mark.parametrize("kind", list(Kind))
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
        ("rotary", "<sin", {"value": 1 << 18}, "sin ends at byte"),
        ("kv_write_bf16", "=page_bytes", {"value": 64}, "page_bytes is 64, the geometry gives"),
        ("kv_write_bf16", "=table_stride", {"value": 0}, "table_stride is 0"),
        ("kv_write_bf16", "!k_cache", {"value": 27584}, "k_cache ends at byte"),
        ("attention_tree_bf16", "=kv_heads", {"value": 0}, "kv_heads is 0"),
        ("attention_tree_bf16", "=kv_heads", {"value": 4}, "kv_heads is 4, which does not divide"),
        ("attention_tree_bf16", "=ancestor_stride", {"value": 1}, "ancestor_stride is 1"),
        ("attention_tree_bf16", "=heads", {"value": 99999}, "ends at byte"),
        ("gather_rows", "<row", {"value": 0}, "row is byte 0 of io"),
        ("argmax_gap", "=width", {"value": 1 << 20}, "logits ends at byte"),
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
    kernels = tuple(replace(kernel, num_params=kernel.num_params - 1) for kernel in program.kernels)
    with pytest.raises(BundleCorrupt, match=r"takes \d+ arguments, not \d+"):
        check(replace(program, kernels=kernels), signatures(program), staged.composer.geometry)


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
