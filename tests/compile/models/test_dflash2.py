"""The parts of DFlash2 against the hand-written oracle, and what a draft may and may not depend on."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from tandem.compile.models.dflash2_config import resolve_drafter
from tandem.compile.models.dflash2_reference import Drafted, ReferenceDrafter
from tandem.compile.models.dflash2_weights import load_drafter
from tests.compile.models import dflash2_oracle as oracle
from tests.compile.models.oracle import Tensors

FEW = settings(max_examples=12, deadline=None)
SPEC, WEIGHTS = resolve_drafter(oracle.TINY), oracle.tensors(oracle.TINY)
EMBEDDING, HEAD = (np.random.default_rng(seed).standard_normal((SPEC.vocab_size, SPEC.hidden_size)) for seed in (1, 2))


def drafter(lanes: int = 1, dtype: torch.dtype = torch.float64) -> ReferenceDrafter:
    stored = Tensors({name: torch.from_numpy(tensor).double() for name, tensor in WEIGHTS.items()})
    tables = (torch.from_numpy(table) for table in (EMBEDDING, HEAD))
    return ReferenceDrafter(SPEC, dict(load_drafter(SPEC, stored)), *tables, dtype, lanes=lanes, context_length=128)


def taps(count: int, seed: int = 5) -> Tensor:
    return torch.from_numpy(np.random.default_rng(seed).standard_normal((count, SPEC.tap_width)))


def close(found: Drafted, wanted: Drafted) -> None:
    assert torch.equal(found.token, wanted.token) and torch.equal(found.walk, wanted.walk)
    for one, other in ((found.logit, wanted.logit), (found.lse, wanted.lse), (found.score, wanted.score)):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-10)


@pytest.mark.parametrize("context", (1, 2, 7, 8, 11, 12, 13, 40))
def test_a_block_is_the_oracles(context: int) -> None:
    """Contexts within the window of all rows, of some, of none; the window is 12, a block 5."""
    ours, given_taps = drafter(), taps(context)
    ours.sync({0: given_taps})
    (found,) = ours.draft({0: 17})
    token, logit, score, walk = oracle.lattice(oracle.TINY, WEIGHTS, EMBEDDING, HEAD, given_taps.numpy(), 17)
    assert found.token.tolist() == token.tolist() and found.chain == walk
    np.testing.assert_allclose(found.logit.numpy(), logit, rtol=0, atol=1e-9)
    np.testing.assert_allclose(found.score.numpy(), score, rtol=0, atol=1e-9)


def test_what_can_change_the_oracles_lattice_does() -> None:
    """The comparison above would be blind to a part that no weight reaches."""
    given_taps = taps(9).numpy()
    clean = oracle.lattice(oracle.TINY, WEIGHTS, EMBEDDING, HEAD, given_taps, 17)[2]
    for name, tensor in WEIGHTS.items():
        other = WEIGHTS | {name: tensor + np.float32(0.25) * (np.arange(tensor.size) % 3).reshape(tensor.shape)}
        assert not np.allclose(oracle.lattice(oracle.TINY, other, EMBEDDING, HEAD, given_taps, 17)[2], clean), name


@given(st.lists(st.integers(1, 30), min_size=1, max_size=4), st.integers(0, 999))
@FEW
def test_neither_company_nor_the_cuts_of_a_sync_matter(contexts: list[int], seed: int) -> None:
    """Lanes drafted beside each other, synced in any pieces, against each alone and synced at once."""
    together, random = drafter(lanes=len(contexts)), np.random.default_rng(seed)
    texts = [taps(count, seed=lane) for lane, count in enumerate(contexts)]
    left = dict(enumerate(texts))
    while any(len(rows) for rows in left.values()):
        pieces = {lane: int(random.integers(len(rows) + 1)) for lane, rows in left.items()}
        if pass_ := {lane: left[lane][:count] for lane, count in pieces.items() if count}:
            together.sync(pass_)
        left = {lane: rows[pieces[lane] :] for lane, rows in left.items()}
    anchors = {lane: 3 * lane + 1 for lane in range(len(contexts))}
    for lane, found in enumerate(together.draft(anchors)):
        alone = drafter()
        alone.sync({0: texts[lane]})
        close(found, alone.draft({0: anchors[lane]})[0])


def test_what_a_draft_wrote_is_gone_once_tokens_are_committed() -> None:
    ours, fresh = drafter(), drafter()
    ours.sync({0: taps(6)})
    ours.draft({0: 4})
    more = taps(3, seed=9)
    ours.sync({0: more})
    fresh.sync({0: torch.cat((taps(6), more))})
    close(ours.draft({0: 8})[0], fresh.draft({0: 8})[0])


def test_rows_of_a_block_see_each_other_both_ways() -> None:
    """Of another mask embedding every slot changes; of another anchor too."""
    ours = drafter()
    ours.sync({0: taps(5)})
    (clean,) = ours.draft({0: 4})
    ours.embedding[SPEC.mask_token_id, 0] += 0.5
    assert ((ours.draft({0: 4})[0].lse - clean.lse).abs() > 1e-6).all()
    ours = drafter()
    ours.sync({0: taps(5)})
    assert ((ours.draft({0: 5})[0].lse - clean.lse).abs() > 1e-6).all()


def test_context_past_the_window_is_not_read() -> None:
    """Whatever stands there, NaN even: the first row of all sees least far back."""
    ours, other = drafter(), drafter()
    text, changed = taps(30), taps(30)
    changed[: 30 - SPEC.sliding_window + 1] = torch.nan
    ours.sync({0: text})
    other.sync({0: changed})
    close(other.draft({0: 2})[0], ours.draft({0: 2})[0])
    changed = text.clone()
    changed[30 - SPEC.sliding_window + 1] += 1
    other = drafter()
    other.sync({0: changed})
    assert not torch.equal(other.draft({0: 2})[0].lse, ours.draft({0: 2})[0].lse)


def test_float32_is_near() -> None:
    exact, plain = drafter(), drafter(dtype=torch.float32)
    for one in (exact, plain):
        one.sync({0: taps(20).to(one.embedding.dtype)})
    (wanted,), (found,) = exact.draft({0: 7}), plain.draft({0: 7})
    assert found.logit.dtype == torch.float32
    torch.testing.assert_close(found.lse.double(), wanted.lse, rtol=0, atol=1e-4)


def test_parts_trace() -> None:
    """Every part exports with static shapes, and nothing but operators, views and elementwise glue is in it."""
    from tandem.compile.models import dflash2

    rows = SPEC.block_size
    with torch.device("meta"):
        parts = [dflash2.Fuse(SPEC), dflash2.Context(SPEC), dflash2.Block(SPEC), dflash2.Lattice(SPEC)]
        h, ints = torch.empty(rows, SPEC.hidden_size), torch.empty(rows, dtype=torch.int32)
        table = torch.empty(1, 4, dtype=torch.int32)
        angles = [torch.empty(64, SPEC.head_dim // 2) for _ in range(2)]
        inputs = dflash2.Pass(ints, ints, ints, ints, table, *angles)
        pages = 4, SPEC.num_key_value_heads
        caches = torch.empty(*pages, SPEC.head_dim, 16), torch.empty(*pages, 16, SPEC.head_dim)
        given_: list[tuple[Any, ...]] = [
            (torch.empty(9, SPEC.tap_width), ints),
            (h, inputs, *caches),
            (h, h, inputs, *caches),
            (h, h, inputs, ints, ints[1:]),
        ]
        for part, arguments in zip(parts, given_, strict=True):
            program = torch.export.export(part, arguments)
            called = {str(node.target) for node in program.graph.nodes if node.op == "call_function"}
            foreign = {name for name in called if not name.startswith(("tandem.", "aten.slice", "aten.view", "auto_"))}
            assert not {name for name in foreign if "getitem" not in name}, foreign
