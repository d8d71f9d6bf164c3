"""A block drafter's programs on a CPU: taps, syncs and blocks against float64, and bits that no company moves."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tandem.compile.assembly import Assembly
from tandem.compile.cpu import composer
from tandem.compile.models.dflash2_reference import ReferenceDrafter
from tandem.compile.models.dflash2_weights import load_drafter
from tandem.compile.models.families import resolve
from tandem.compile.models.weights import load
from tandem.compile.train.drafter.target import Target
from tandem.runtime.executor.base import DraftOutcome
from tandem.runtime.executor.cpu import CpuExecutor
from tandem.runtime.rows import DraftSpan, block_rows, draft_rows
from tests.compile.models import oracle
from tests.kernels.harness import assert_bits
from tests.runtime.executor.test_drafts import CHAIN, COMMIT, DRAFT, EXTEND, SYNC, TREE, launched, told
from tests.staged import Lane, Staged, stage
from tests.tiny import make_checkpoint
from tests.tiny_drafter import BLOCK, TOP, WINDOW, drafter_of, make_drafter

FAMILIES = ["llama", "qwen3_5-odd"]
IDS = [(7 * i * i + 3) % 300 for i in range(150)]
RING, FEW = 64 + 512, settings(max_examples=10, deadline=None)


@pytest.fixture(scope="module", params=FAMILIES)
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = make_checkpoint(tmp_path_factory.mktemp("blocks") / request.param, request.param)
    make_drafter(made / "drafter", made)
    return made


def staged_from(folder: Path, profile: str = "fp32", *, drafter: bool = True) -> Staged:
    place = Path(tempfile.mkdtemp(dir=folder))
    drafts = drafter_of(folder / "drafter") if drafter else None
    return stage(oracle.read_config(folder), oracle.read_tensors(folder), profile, place, drafter=drafts)


@pytest.fixture(scope="module")
def staged(folder: Path) -> Staged:
    return staged_from(folder)


@pytest.fixture(scope="module")
def executor(staged: Staged) -> Iterator[CpuExecutor]:
    opened = staged.executor()
    yield opened
    opened.close()


def ring(executor: CpuExecutor) -> np.ndarray:
    return executor._regions["taps"].view(np.float32).reshape(RING, -1)  # type: ignore[no-any-return]


def synced(executor: CpuExecutor, table: np.ndarray, lane: int, start: int, taps: Sequence[int]) -> None:
    span = DraftSpan(lane, start, IDS[start : start + len(taps)], taps)
    executor.draft(SYNC, draft_rows(SYNC, [span], table))


def drafted(executor: CpuExecutor, table: np.ndarray, lanes: Sequence[int], starts: Sequence[int]) -> DraftOutcome:
    block = executor.geometry.drafter.block  # type: ignore[union-attr]
    assert block is not None
    anchors = [IDS[start] for start in starts]
    return executor.draft(DRAFT, block_rows(lanes, starts, anchors, block, table))


def fields(outcome: DraftOutcome) -> list[np.ndarray]:
    assert outcome.score is not None and outcome.walk is not None
    return [outcome.token, outcome.logit, outcome.lse, outcome.score, outcome.walk]


@torch.no_grad()
def test_blocks_are_those_by_hand(folder: Path, executor: CpuExecutor) -> None:
    """The model's passes, syncs and blocks against the training code's target and the drafter in float64."""
    config, tensors = oracle.read_config(folder), oracle.read_tensors(folder)
    target = Target(resolve(config), dict(load(resolve(config), tensors)), torch.float64, torch.device("cpu"))
    own = drafter_of(folder / "drafter")
    known, _ = target.sequence(torch.tensor([IDS]), own.block.taps)
    drafter = ReferenceDrafter(own.block, dict(load_drafter(own.block, own.checkpoint)), target.embedding, target.head)
    lane = Lane(executor)
    told(lane, 0, IDS[:60], range(100, 160))
    told(lane, 60, IDS[60:90], range(200, 230), CHAIN if not lane.slots else EXTEND)
    told(lane, 90, IDS[90:140], range(300, 350))
    found = np.concatenate([ring(executor)[a:b] for a, b in ((100, 160), (200, 230), (300, 350))])
    np.testing.assert_allclose(found, known[0, :140].numpy(), rtol=1e-4, atol=2e-4)
    for start, end, first in ((0, 60, 100), (60, 90, 200), (90, 140, 300)):
        synced(executor, lane.table, 0, start, range(first, first + end - start))
        drafter.sync({0: known[0, start:end]})
        outcome = drafted(executor, lane.table, [0], [end])
        (wanted,) = drafter.draft({0: IDS[end]})
        np.testing.assert_array_equal(outcome.token, wanted.token.numpy())
        np.testing.assert_array_equal(outcome.walk, wanted.walk.numpy())
        for name in ("logit", "lse", "score"):
            np.testing.assert_allclose(getattr(outcome, name), getattr(wanted, name).numpy(), rtol=0, atol=5e-4)
        assert outcome.ms > 0 and [field.dtype for field in fields(outcome)] == [np.int32, *["f4"] * 3, np.int32]
        assert [f.shape for f in fields(outcome)] == [(4, TOP), (4, TOP), (4,), (4, TOP, TOP), (4,)]


@pytest.mark.parametrize("profile", ["bf16", "int8"])
def test_programs_have_the_bits_of_operators_one_by_one(
    folder: Path, profile: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing taken along by another kernel, a barrier before each, on one thread; against programs as they are."""
    found = []
    for plain in (False, True):
        if plain:
            monkeypatch.setattr(composer, "fuse", lambda assembly, launches: launches)
            monkeypatch.setattr(Assembly, "_waits", lambda assembly: [True] * len(assembly.launches))
        staged = staged_from(folder, profile)
        executor = staged.executor(threads=1 if plain else 3)
        lane = Lane(executor)
        told(lane, 0, IDS[:60], range(60))
        told(lane, 60, IDS[60:70], range(60, 70))
        synced(executor, lane.table, 0, 0, range(64))
        synced(executor, lane.table, 0, 64, range(64, 70))
        found.append([ring(executor)[:70].copy(), *fields(drafted(executor, lane.table, [0], [70]))])
        assert ("rotary_kv_write" in " ".join(launched(staged, DRAFT))) is not plain
        executor.close()
    for one, other in zip(*found, strict=True):
        assert_bits(one, other)


@pytest.mark.parametrize("profile", ["fp32", "bf16", "int4"])
def test_taps_move_no_bit_of_a_text(folder: Path, profile: str) -> None:
    """The same passes in a bundle without a drafter, in one with it, and there with taps wanted of some rows."""
    seen: list[list[np.ndarray]] = []
    for drafter, taps in ((False, ()), (True, ()), (True, [3, -1, 7, 9] * 10)):
        executor = staged_from(folder, profile, drafter=drafter).executor()
        lane = Lane(executor)
        found = [told(lane, 0, IDS[:40], [tap + i for i, tap in enumerate(taps)] if taps else ())]
        found += [told(lane, 40, IDS[40:58], taps[:0] or [-1] * 18 if drafter else (), kind) for kind in (CHAIN, TREE)]
        state = executor.save(0, 40).state.tobytes() if lane.slots else b""
        seen.append([*found, np.frombuffer(executor.kv(lane.table[0], 40) + state, "u1")])
        executor.close()
    for others in seen[1:]:
        for one, other in zip(seen[0], others, strict=True):
            assert_bits(other, one)


def test_passes_of_all_kinds_leave_the_same_taps(executor: CpuExecutor) -> None:
    """Rows of chunks, chains and trees; and what no row names stays as it was."""
    lane = Lane(executor)
    told(lane, 0, IDS[:48], ())
    if lane.slots:
        kept = executor.save(0, 48)
    kept_ring = ring(executor).copy()
    for kind, first in ((CHAIN, 200), (TREE, 300), (EXTEND, 100)):
        if lane.slots:
            executor.restore(0, kept)
        told(lane, 48, IDS[48:58], [*range(first, first + 9), -1], kind)
    assert_bits(ring(executor)[200:209], ring(executor)[100:109])
    # Every other node of the tree is a leaf: those of its line are the chunk's.
    assert_bits(ring(executor)[300:302], ring(executor)[100:102])
    for untouched in (range(109, 200), range(209, 300), range(309, RING)):
        assert_bits(ring(executor)[untouched], kept_ring[untouched])


@given(st.lists(st.integers(1, 130), min_size=1, max_size=4), st.integers(0, 2**31))
@FEW
def test_neither_company_nor_the_cuts_of_a_sync_matter(executor: CpuExecutor, lengths: list[int], seed: int) -> None:
    """Lanes synced in any pieces, their rows in one pass or another, drafted beside each other, against each alone."""
    random, pages = np.random.default_rng(seed), executor.geometry.blocks_per_lane
    ring(executor)[:] = np.random.default_rng(1).standard_normal(ring(executor).shape)
    table = np.zeros((4, executor.geometry.blocks_per_lane), np.int32)
    table[:, :pages] = random.permutation(4 * pages).reshape(4, pages)
    alone = []
    for lane, length in enumerate(lengths):
        for begin in range(0, length, 64):
            synced(executor, table, lane, begin, range(lane * 144 + begin, lane * 144 + min(begin + 64, length)))
        alone.append([field.copy() for field in fields(drafted(executor, table, [lane], [length]))])
    table[:, :pages] = random.permutation(4 * pages).reshape(4, pages)
    left = [list(range(length)) for length in lengths]
    while any(left):
        spans = []
        for lane, rows in enumerate(left):
            count = min(int(random.integers(0, len(rows) + 1)), 12)
            here, left[lane] = rows[:count], rows[count:]
            if here:
                spans.append(DraftSpan(lane, here[0], [0] * count, [lane * 144 + i for i in here]))
        if spans:
            executor.draft(SYNC, draft_rows(SYNC, spans, table))
    order = random.permutation(len(lengths)).tolist()
    together = drafted(executor, table, order, [lengths[lane] for lane in order])
    for place, lane in enumerate(order):
        for found, wanted in zip(fields(together), alone[lane], strict=True):
            assert_bits(found[place * (BLOCK - 1) : (place + 1) * (BLOCK - 1)], wanted)


def test_a_block_sees_less_than_a_window_back(executor: CpuExecutor) -> None:
    """Its first row sees farthest: what stands before that may be anything, and the first it sees may not."""
    lane, end = Lane(executor), 140
    values = np.random.default_rng(2).standard_normal(ring(executor).shape).astype(np.float32)
    ring(executor)[:] = values
    synced(executor, lane.table, 0, 0, range(60))
    synced(executor, lane.table, 0, 60, range(60, 120))
    synced(executor, lane.table, 0, 120, range(120, end))
    clean = drafted(executor, lane.table, [0], [end])
    oldest = end - WINDOW + 1
    for changed, same in ((oldest - 1, True), (oldest, False)):
        synced(executor, lane.table, 0, changed, [400])
        found = drafted(executor, lane.table, [0], [end])
        assert all(np.array_equal(a, b) for a, b in zip(fields(found), fields(clean), strict=True)) is same
        synced(executor, lane.table, 0, changed, [changed])


def test_a_drafter_leaves_all_that_a_text_is_made_of(executor: CpuExecutor) -> None:
    lane = Lane(executor)
    told(lane, 0, IDS[:20], range(20))
    state = executor.save(0, 20).state.tobytes() if lane.slots else b""
    kept, taps = executor.kv(lane.table[0], 20) + state, ring(executor).copy()
    synced(executor, lane.table, 0, 0, range(20))
    drafted(executor, lane.table, [0], [20])
    state = executor.save(0, 20).state.tobytes() if lane.slots else b""
    assert executor.kv(lane.table[0], 20) + state == kept
    assert_bits(ring(executor), taps)


def test_programs_are_as_short_as_they_can_be(folder: Path, staged: Staged) -> None:
    """A tap is one launch and leaves the others as they are; a sync ends at its cache."""
    plain = staged_from(folder, drafter=False)
    for kind in (EXTEND, CHAIN, TREE):
        names = launched(staged, kind)
        assert names.count("scatter_sum") == 2 and names[-5] == "scatter_sum"
        assert [name for name in names if name != "scatter_sum"] == launched(plain, kind)
    assert launched(staged, COMMIT) == launched(plain, COMMIT)
    keep = ["linear", "rms_norm", "rotary", "kv_write"]
    assert launched(staged, SYNC) == ["gather_rows", "linear", "rms_norm", *keep, *keep]
    ends = ["gather_rows", "gather_rows", "add_rms_norm", "linear", "top_k", "linear", "lattice_scores", "lattice_walk"]
    attention = ["linear", "rms_norm", "linear", "rms_norm", "rotary_kv_write", "block_attention", "linear"]
    mlp = ["linear", "swiglu", "linear"]  # 40 gates are no whole panels
    layer = ["linear", "block_conv", *attention, "block_conv", "add_rms_norm", "linear", "block_conv", *mlp]
    body = [*layer, "block_conv"]
    assert launched(staged, DRAFT) == ["embedding", "rms_norm", *body, "add_rms_norm", *body, *ends]


def test_what_is_no_whole_block_is_refused(executor: CpuExecutor) -> None:
    lane, block = Lane(executor), executor.geometry.drafter.block  # type: ignore[union-attr]
    assert block is not None
    synced(executor, lane.table, 0, 0, range(10))
    whole = block_rows([0], [10], [3], block, lane.table)
    for wrong in (
        replace(whole, output_row=range(5)),
        replace(whole, output_row=[1, 2, 3]),
        replace(whole, prefix=[11] * 5),
        replace(whole, position=range(11, 16)),
        replace(whole, **{n: getattr(whole, n)[:4] for n in ("token", "position", "lane", "slot", "prefix", "tap")}),
    ):
        with pytest.raises(ValueError, match="are no whole blocks of 5"):
            executor.draft(DRAFT, wrong)
    assert executor.geometry.draft_lanes == 4
    many = block_rows(range(13), [0] * 13, [1] * 13, block, np.zeros((13, 1), np.int32))
    with pytest.raises(ValueError, match="memoryview assignment"):
        executor.draft(DRAFT, many)
