"""A block drafter's programs that lie: what reaches outside, or for what texts are made of, is refused before a run."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tandem.artifacts.io import IoLayout
from tandem.errors import BundleCorrupt
from tandem.keys import Kind
from tandem.runtime.executor import roles
from tests.runtime.executor.test_blocks import staged_from
from tests.runtime.executor.test_drafts import CHAIN, COMMIT, DRAFT, EXTEND, SYNC, TREE
from tests.runtime.executor.test_drafts_refused import lying
from tests.runtime.executor.test_recurrent import checked, opened_with
from tests.staged import Staged
from tests.tiny import make_checkpoint
from tests.tiny_drafter import make_drafter


@pytest.fixture(scope="module")
def staged(tmp_path_factory: pytest.TempPathFactory) -> Staged:
    made = make_checkpoint(tmp_path_factory.mktemp("lies") / "llama", "llama")
    make_drafter(made / "drafter", made)
    return staged_from(made)


SUM, ATTENTION, CONV = "scatter_sum", "block_attention_fp32", "block_conv"
SCORES, WALK = "lattice_scores_fp32", "lattice_walk"
LIES: list[tuple[Kind, str, str, dict[str, int | str], str]] = [
    (EXTEND, SUM, "=ring_stride", {"value": 48}, "ring_stride is 48, the geometry gives 96"),
    (EXTEND, SUM, "=width", {"value": 49}, "x_stride is 48, a row has 49"),
    (CHAIN, SUM, "!ring", {"behind": 4}, "ring ends at byte"),
    (TREE, SUM, "!ring", {"region": "scratch"}, "ring is in scratch, not in taps"),
    (EXTEND, SUM, "<tap_out", {"value": 64}, "tap_out is byte 64 of io, which is another field"),
    (SYNC, "gather_rows", "<x", {"behind": 4}, "x ends at byte"),
    (SYNC, "gather_rows", "<x", {"region": "scratch"}, "x is in scratch, of which tap names no rows"),
    (SYNC, "kv_write_fp32", "=page_bytes", {"value": 64}, "page_bytes is 64, the geometry gives"),
    (SYNC, "kv_write_fp32", "!v_cache", {"behind": 1 << 14}, "v_cache ends at byte"),
    (SYNC, "rotary", "<cos", {"behind": 1 << 20}, "cos ends at byte"),
    (DRAFT, ATTENTION, "<k_cache", {"region": "kv"}, "k_cache and v_cache are in two regions"),
    (DRAFT, ATTENTION, "<v_cache", {"behind": 1 << 14}, "v_cache ends at byte"),
    (DRAFT, ATTENTION, "=page_bytes", {"value": 64}, "page_bytes is 64, the geometry gives"),
    (DRAFT, ATTENTION, "=block", {"value": 6}, "block is 6, the geometry gives 5"),
    (DRAFT, ATTENTION, "=window", {"value": 0}, "window is no number in range"),
    (DRAFT, ATTENTION, "=heads", {"value": 5}, "kv_heads is 2, which does not divide the heads"),
    (DRAFT, ATTENTION, "<prefix", {"value": 64}, "prefix is byte 64 of io, which is another field"),
    (DRAFT, CONV, "=group", {"value": 5}, "group is 5, which does not divide the channels"),
    (DRAFT, CONV, "=taps", {"value": 60}, "delta_stride is .*, a row has 720"),
    (DRAFT, CONV, "<weight", {"behind": 1 << 20}, "weight ends at byte"),
    (DRAFT, CONV, "=channels", {"value": 96}, "x_stride is 48, a row has 96"),
    (DRAFT, SCORES, "=k", {"value": 5}, "k is 5, the geometry gives 4"),
    (DRAFT, SCORES, "=rank", {"value": 70}, "gate_stride is 7, a row has 70"),
    (DRAFT, SCORES, "<successor", {"behind": 1 << 22}, "successor ends at byte"),
    (DRAFT, SCORES, "<predecessor", {"region": "scratch"}, "predecessor is in scratch, not in weights"),
    (DRAFT, SCORES, "<candidate", {"region": "scratch"}, "candidate is in scratch, not in io"),
    (DRAFT, SCORES, "<candidate", {"behind": 64}, "candidate is byte .* of io, which is another field"),
    (DRAFT, SCORES, "<count", {"value": 0}, "candidate has 32 entries for 64 rows"),
    (DRAFT, SCORES, ">score", {"behind": 64}, "score is byte .* of io, which is another field"),
    (DRAFT, WALK, ">greedy", {"region": "scratch"}, "greedy is in scratch, not in io"),
    (DRAFT, WALK, "=k", {"value": 3}, "k is 3, the geometry gives 4"),
    (DRAFT, "top_k", "=top", {"value": 3}, "top is 3, the geometry gives 4"),
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
    """But for those of passes of a model without a state, which differ in ancestors alone: no CPU's is told by them."""
    passes = {EXTEND, CHAIN, TREE}
    for kind, program in staged.programs.items():
        for other in staged.programs:
            if other is not kind and not {kind, other} <= passes:
                with pytest.raises(BundleCorrupt, match="rebuild the bundle"):
                    opened_with(staged, other, program)


@pytest.mark.parametrize(("field", "words"), [("draft_walk", "a walk"), ("draft_token", "guesses")])
def test_what_every_draft_of_blocks_gives_is_asked_for(staged: Staged, field: str, words: str) -> None:
    program, layout = staged.programs[DRAFT], IoLayout(staged.composer.geometry)
    params, io = program.params.copy(), [region.name for region in program.regions].index("io")
    taken = (params["region"] == io) & (params["value"] == layout.fields[field].offset)
    params["value"][taken] = layout.fields["token"].offset
    with pytest.raises(BundleCorrupt, match=f"^this: its program takes no {words}, as every draft does; rebuild"):
        roles.check(DRAFT, replace(program, params=params), layout, "this", but=(roles.ANCESTOR,))


@pytest.mark.parametrize(("field", "words"), [("tap", "taps to read"), ("tap_out", "taps to write")])
def test_a_draft_of_blocks_takes_no_taps(staged: Staged, field: str, words: str) -> None:
    program, layout = staged.programs[DRAFT], IoLayout(staged.composer.geometry)
    params, io = program.params.copy(), [region.name for region in program.regions].index("io")
    taken = np.flatnonzero((params["region"] == io) & (params["value"] == layout.fields["output_row"].offset))
    params["value"][taken[0]] = layout.fields[field].offset
    with pytest.raises(BundleCorrupt, match=f"^this: its program takes {words}, as no draft does; rebuild"):
        roles.check(DRAFT, replace(program, params=params), layout, "this", but=(roles.ANCESTOR,))
