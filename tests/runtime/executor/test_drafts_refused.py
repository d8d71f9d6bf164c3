"""A drafter's programs that lie: what reaches outside, or for what texts are made of, is refused before it runs."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tandem.artifacts.io import IoLayout
from tandem.artifacts.program import Program
from tandem.errors import BundleCorrupt
from tandem.keys import Kind
from tandem.runtime.executor import roles
from tandem.runtime.executor.cpu import CpuExecutor, Image
from tandem.runtime.executor.library import Library
from tests.kernels.harness import library
from tests.runtime.executor.test_drafts import CHAIN, COMMIT, DRAFT, EXTEND, SYNC, TREE, staged_from
from tests.runtime.executor.test_recurrent import checked, opened_with
from tests.staged import Staged
from tests.tiny import make_checkpoint
from tests.tiny_hybrid import add_mtp


@pytest.fixture(scope="module")
def staged(tmp_path_factory: pytest.TempPathFactory) -> Staged:
    made = make_checkpoint(tmp_path_factory.mktemp("lies") / "qwen3_5", "qwen3_5-odd")
    add_mtp(made)
    return staged_from(made)


def lying(staged: Staged, kind: Kind, kernel: str, word: str, changes: dict[str, int | str]) -> Program:
    """A program in which one argument of a launch of `kernel`, the first or the last, is another."""
    program, team = staged.programs[kind], Library(library(), 1)
    which = [k.symbol for k in program.kernels].index(f"tdm_{kernel}")
    launches = [launch for launch in program.launches if launch["kernel"] == which]
    launch = launches[0 if changes.get("of") == "first" else -1]
    place = launch["first_param"] + team.signature(f"tdm_{kernel}").index(word)
    params, names = program.params.copy(), [region.name for region in program.regions]
    if "region" in changes:
        params["region"][place], params["value"][place] = names.index(str(changes["region"])), 0
    if "value" in changes:
        params["value"][place] = changes["value"]
    params["value"][place] += changes.get("behind", 0)
    return replace(program, params=params)


LIES: list[tuple[Kind, str, str, dict[str, int | str], str]] = [
    (DRAFT, "gather_rows", "<x", {"of": "first", "region": "scratch"}, "x is in scratch, of which tap names no rows"),
    (DRAFT, "gather_rows", "<x", {"of": "first", "behind": 4}, "x ends at byte"),
    (DRAFT, "gather_rows", "=width", {"of": "first", "value": 1 << 12}, "x_stride is 48, a row has 4096"),
    (DRAFT, "gather_rows", "<x", {"region": "taps"}, "x is in taps, of which output_row names no rows"),
    (DRAFT, "scatter_rows", "=width", {"value": 12}, "width is 12, the geometry gives 48"),
    (DRAFT, "scatter_rows", "!ring", {"value": 64}, "ring ends at byte"),
    (DRAFT, "scatter_rows", "!ring", {"region": "weights"}, "ring is in weights, not in taps"),
    (DRAFT, "scatter_rows", "<x", {"region": "taps"}, "x is in taps, not in scratch"),
    (DRAFT, "scatter_rows", "<tap_out", {"value": 64}, "tap_out is byte 64 of io, which is another field"),
    (EXTEND, "scatter_rows", "<tap_out", {"value": 64}, "tap_out is byte 64 of io, which is another field"),
    (DRAFT, "top_k", "=top", {"value": 3}, "top is 3, the geometry gives 2"),
    (DRAFT, "top_k", "=width", {"value": 334}, "width is 334, the vocabulary has 333"),
    (DRAFT, "top_k", "=width", {"value": 1}, "width is 1, the vocabulary has 333"),
    (DRAFT, "top_k", "<count", {"value": 0}, "draft_token has 32 entries for 64 rows"),
    (DRAFT, "top_k", ">draft_token", {"behind": 4}, "draft_token is byte .* of io, which is another field"),
    (DRAFT, "top_k", ">draft_logit", {"region": "scratch"}, "draft_logit is in scratch, not in io"),
    (SYNC, "rotary_kv_write_fp32", "=page_bytes", {"value": 64}, "page_bytes is 64, the geometry gives"),
    (SYNC, "rotary_kv_write_fp32", "!k_cache", {"behind": 1 << 14}, "k_cache ends at byte"),
    (SYNC, "rotary_kv_write_fp32", "!k_cache", {"region": "kv"}, "k_cache and v_cache are in two regions"),
]


@pytest.mark.parametrize(("kind", "kernel", "word", "changes", "line"), LIES, ids=[f"{k}-{w}" for _, k, w, *_ in LIES])
def test_a_launch_that_reaches_outside_is_named(
    staged: Staged, kind: Kind, kernel: str, word: str, changes: dict[str, int | str], line: str
) -> None:
    with pytest.raises(BundleCorrupt, match=f"tdm_{kernel}: .*{line}"):
        checked(staged, lying(staged, kind, kernel, word, changes))


@pytest.mark.parametrize("kind", [EXTEND, CHAIN, TREE, COMMIT, DRAFT, SYNC])
def test_sound_programs_are_inside(staged: Staged, kind: Kind) -> None:
    checked(staged, staged.programs[kind])


def test_no_programs_stand_in_for_each_other(staged: Staged) -> None:
    """Each kind's program in place of each other one's is refused; a chain's and a tree's differ in ancestors alone,
    which no CPU's program is told apart by."""
    for kind, program in staged.programs.items():
        for other in staged.programs:
            if other is kind or {kind, other} == {CHAIN, TREE}:
                continue
            with pytest.raises(BundleCorrupt, match="rebuild the bundle"):
                opened_with(staged, other, program)


@pytest.mark.parametrize(("kind", "words"), [(DRAFT, "the model's K and V"), (SYNC, "the model's K and V")])
def test_a_drafter_that_writes_the_models_cache_is_refused(staged: Staged, kind: Kind, words: str) -> None:
    program = staged.programs[kind]
    names = [region.name for region in program.regions]
    params, size = program.params.copy(), staged.composer.geometry.page_bytes
    params["region"][params["region"] == names.index("draft_kv")] = names.index("kv")
    for page_bytes in np.flatnonzero(params["value"] == staged.composer.geometry.drafter.page_bytes):  # type: ignore[union-attr]
        if params["region"][page_bytes] < 0:
            params["value"][page_bytes] = size
    with pytest.raises(BundleCorrupt, match=f"{kind} entry: its program takes {words}, as no {kind} does"):
        opened_with(staged, kind, replace(program, params=params))


@pytest.mark.parametrize(("kind", "field", "words"), [
    (EXTEND, "tap_out", "taps to write"), (CHAIN, "tap_out", "taps to write"), (TREE, "tap_out", "taps to write"),
    (DRAFT, "tap_out", "taps to write"), (DRAFT, "tap", "taps to read"), (SYNC, "tap", "taps to read"),
    (DRAFT, "draft_token", "guesses"),
])  # fmt: skip
def test_what_every_program_of_a_kind_takes_is_asked_for(staged: Staged, kind: Kind, field: str, words: str) -> None:
    program, layout = staged.programs[kind], IoLayout(staged.composer.geometry)
    params, io = program.params.copy(), [region.name for region in program.regions].index("io")
    taken = (params["region"] == io) & (params["value"] == layout.fields[field].offset)
    assert taken.any()
    params["value"][taken] = layout.fields["token"].offset
    with pytest.raises(BundleCorrupt, match=f"^this: its program takes no {words}, as every {kind} does; rebuild"):
        roles.check(kind, replace(program, params=params), layout, "this", but=(roles.ANCESTOR,))


def test_a_drafter_nobody_stated_is_refused(staged: Staged) -> None:
    g = replace(staged.composer.geometry, drafter=None)
    for kinds in ((SYNC,), (EXTEND,)):
        image = Image(g, staged.weights.data, Library(library(), 1), {kind: staged.programs[kind] for kind in kinds})
        with pytest.raises(BundleCorrupt, match="rebuild the bundle"):
            CpuExecutor(image, num_pages=2)
