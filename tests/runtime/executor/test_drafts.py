"""A drafter's programs on a CPU: its guesses against float64, and taps that move no bit of a text."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from tandem.compile.drafters import Mtp
from tandem.compile.models.families import resolve
from tandem.compile.train.model import Model
from tandem.errors import UsageError
from tandem.keys import Kind
from tandem.runtime.executor.base import DraftOutcome
from tandem.runtime.executor.cpu import CpuExecutor
from tandem.runtime.rows import DraftSpan, Span, draft_rows, extend_rows, verify_rows
from tandem.tree import DraftTree
from tests.compile.models import oracle
from tests.compile.models.mtp_reference import Drafter
from tests.kernels.harness import assert_bits
from tests.staged import Lane, Staged, stage
from tests.tiny import make_checkpoint
from tests.tiny_hybrid import add_mtp

EXTEND, CHAIN, TREE, COMMIT = Kind.EXTEND, Kind.VERIFY_CHAIN, Kind.VERIFY_TREE, Kind.COMMIT
DRAFT, SYNC = Kind.DRAFT, Kind.SYNC
IDS = [(7 * i * i + 3) % 300 for i in range(90)]
RING = 64 + 512


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = make_checkpoint(tmp_path_factory.mktemp("drafts") / "qwen3_5", "qwen3_5-odd")
    add_mtp(made)
    return made


def staged_from(folder: Path, profile: str = "fp32", *, drafter: bool = True) -> Staged:
    place = Path(tempfile.mkdtemp(dir=folder))
    return stage(
        oracle.read_config(folder), oracle.read_tensors(folder), profile, place, drafter=Mtp() if drafter else None
    )


@pytest.fixture(scope="module")
def staged(folder: Path) -> Staged:
    return staged_from(folder)


@pytest.fixture
def executor(staged: Staged) -> Iterator[CpuExecutor]:
    opened = staged.executor()
    yield opened
    opened.close()


def told(lane: Lane, start: int, ids: Sequence[int], taps: Sequence[int], kind: Kind = EXTEND) -> np.ndarray:
    """A pass over `ids` that leaves taps; logits of its rows, 32 at most."""
    if kind is EXTEND:
        rows = extend_rows([Span(0, start, ids, min(32, len(ids)))], lane.table, lane.slots)
    else:
        rows = verify_rows(kind, [0], [start], [branched(ids, kind)], lane.table, lane.slots)
    rows.tap_out = taps
    lane.executor.run(kind, rows)
    return np.stack([lane.executor.logits(i) for i in range(len(rows.output_row))])


def branched(ids: Sequence[int], kind: Kind) -> DraftTree:
    """A chain, or a tree in which every other node is a leaf."""
    parents = [-1, *(range(len(ids) - 1) if kind is CHAIN else [max(0, (i - 1) // 2 * 2) for i in range(1, len(ids))])]
    return DraftTree(list(ids), parents, [0.5] * len(ids), ["test"] * len(ids))


def ring(executor: CpuExecutor) -> np.ndarray:
    return executor._regions["taps"].view(np.float32).reshape(RING, -1)  # type: ignore[no-any-return]


def drafted(lane: Lane, start: int, tokens: Sequence[int], taps: Sequence[int], out: int = -1) -> DraftOutcome:
    rows = draft_rows(DRAFT, [DraftSpan(0, start, tokens, taps, out)], lane.table)
    return lane.executor.draft(DRAFT, rows)


def synced(lane: Lane, start: int, tokens: Sequence[int], taps: Sequence[int]) -> None:
    lane.executor.draft(SYNC, draft_rows(SYNC, [DraftSpan(0, start, tokens, taps)], lane.table))


@torch.no_grad()
def test_chains_are_those_by_hand(folder: Path, executor: CpuExecutor) -> None:
    """The model's passes, a sync, a draft and a chain behind it against the training code and MTP by hand."""
    config, tensors = oracle.read_config(folder), oracle.read_tensors(folder).tensors
    model = Model(resolve(config)).double()
    model.load_state_dict({name: t.double() for name, t in tensors.items()})
    known = model.hidden(torch.tensor([IDS]))[0]
    guesses, logits = Drafter(config, tensors).chains(torch.tensor(IDS[1:]), known[:-1], 4)
    lane, end = Lane(executor), len(IDS) - 1
    told(lane, 0, IDS[:50], range(100, 150))
    told(lane, 50, IDS[50:], range(150, 190))
    np.testing.assert_allclose(ring(executor)[100:190], known.numpy(), rtol=0, atol=2e-4)
    synced(lane, 0, IDS[1:61], range(100, 160))
    outcome = drafted(lane, 60, IDS[61:], range(160, 189), out=7)
    for depth in range(4):
        wanted = logits[-1, depth].numpy()
        np.testing.assert_allclose(executor.logits(0), wanted, rtol=0, atol=2e-4)
        order = np.argsort(-wanted, kind="stable")[:2]
        np.testing.assert_array_equal(outcome.token, order[None])
        np.testing.assert_allclose(outcome.logit, wanted[order][None], rtol=0, atol=2e-4)
        assert outcome.lse == pytest.approx([float(logits[-1, depth].logsumexp(-1))], abs=2e-4)
        assert outcome.token[0, 0] == guesses[-1, depth] and outcome.ms > 0
        outcome = drafted(lane, end + depth, [outcome.token[0, 0]], [7], out=7)


@pytest.mark.parametrize("profile", ["fp32", "bf16", "int4"])
def test_taps_move_no_bit_of_a_text(folder: Path, profile: str) -> None:
    """The same passes in a bundle without a drafter, in one with it, and there with taps wanted of some rows."""
    logits: list[list[np.ndarray]] = []
    for drafter, taps in ((False, ()), (True, ()), (True, [3, -1] * 20)):
        executor = staged_from(folder, profile, drafter=drafter).executor()
        lane = Lane(executor)
        found = [told(lane, 0, IDS[:40], taps)]
        found += [told(lane, 40, IDS[40:58], taps[:18], kind) for kind in (CHAIN, TREE)]
        logits.append(
            [*found, np.frombuffer(executor.kv(lane.table[0], 40) + executor.save(0, 40).state.tobytes(), "u1")]
        )
        executor.close()
    for others in logits[1:]:
        for one, other in zip(logits[0], others, strict=True):
            assert_bits(other, one)


def launched(staged: Staged, kind: Kind) -> list[str]:
    """The kernels of a program in order, less their formats."""
    program = staged.programs[kind]
    names = [kernel.symbol.removeprefix("tdm_").removesuffix("_fp32") for kernel in program.kernels]
    return [names[i] for i in program.launches["kernel"]]


def test_programs_are_as_short_as_they_can_be(folder: Path, staged: Staged) -> None:
    """Taps take two launches of a pass and leave the others joined as they were; a sync ends at its cache."""
    plain = staged_from(folder, drafter=False)
    for kind in (EXTEND, CHAIN, TREE):
        names = launched(staged, kind)
        place = names.index("scatter_rows")
        assert names[place - 1] == "add_rms_norm" and names[place + 1 :] == ["gather_rows"] * 2 + [
            "linear",
            "argmax_gap",
        ]
        assert names[: place - 1] + names[place + 1 :] == launched(plain, kind)
    assert launched(staged, COMMIT) == launched(plain, COMMIT)
    block = ["linear", "rms_norm", "rms_norm", "rotary_kv_write"]
    sync = ["embedding", "linear", "gather_rows", "linear", *block]
    rest = ["attention", "sigmoid_gate", "linear", "linear", "swiglu", "linear"]  # 112 gates are no whole panels
    assert launched(staged, SYNC) == sync
    ends = ["add_rms_norm", "scatter_rows", "gather_rows", "linear", "top_k"]
    assert launched(staged, DRAFT) == [*sync, *rest, *ends]


def test_rows_leave_taps_where_they_are_told_and_nowhere_else(executor: CpuExecutor) -> None:
    lane = Lane(executor)
    places = [5, -1, RING - 1, -1, 0]
    told(lane, 0, IDS[:5], places)
    held = np.isfinite(ring(executor)).all(axis=1)
    assert np.flatnonzero(held).tolist() == [0, 5, RING - 1] and np.isnan(ring(executor)[~held]).all()
    kept = ring(executor).copy()
    told(lane, 5, IDS[5:9], ())
    assert_bits(ring(executor), kept)


def test_a_drafter_leaves_all_that_a_text_is_made_of(executor: CpuExecutor) -> None:
    lane = Lane(executor)
    told(lane, 0, IDS[:20], range(20))
    kept = [executor.kv(lane.table[0], 20), executor.save(0, 20).state.tobytes()]
    drafted(lane, 0, IDS[1:20], range(19), out=30)
    synced(lane, 0, IDS[1:20], range(19))
    assert [executor.kv(lane.table[0], 20), executor.save(0, 20).state.tobytes()] == kept


def test_guesses_are_copies_of_as_many_rows_as_were_asked_for(executor: CpuExecutor) -> None:
    lane = Lane(executor)
    told(lane, 0, IDS[:20], range(20))
    rows = draft_rows(DRAFT, [DraftSpan(0, 0, IDS[1:20], range(19))], lane.table)
    rows.output_row = [2, 5, 18]
    first = executor.draft(DRAFT, rows)
    kept = first.token.copy(), first.logit.copy(), first.lse.copy()
    assert [a.shape for a in kept] == [(3, 2), (3, 2), (3,)] and kept[0].dtype == np.int32
    drafted(lane, 0, IDS[5:6], [4])
    for now, then in zip((first.token, first.logit, first.lse), kept, strict=True):
        assert_bits(now, then)


def test_what_no_drafter_takes_is_refused(folder: Path, executor: CpuExecutor) -> None:
    lane = Lane(executor)
    wide = draft_rows(SYNC, [DraftSpan(0, 0, IDS[:65], range(65))], lane.table)
    with pytest.raises(ValueError, match="memoryview assignment"):
        executor.draft(SYNC, wide)
    with pytest.raises(ValueError, match="3 rows of a drafter with 2 taps"):
        executor.draft(SYNC, replace(draft_rows(SYNC, [DraftSpan(0, 0, IDS[:3], range(3))], lane.table), tap=[0, 1]))
    short = replace(draft_rows(DRAFT, [DraftSpan(0, 0, IDS[:3], range(3))], lane.table), tap_out=[0])
    with pytest.raises(ValueError, match="3 rows that leave 1 taps"):
        executor.draft(DRAFT, short)
    with pytest.raises(UsageError, match="no extend"):
        executor.draft(EXTEND, wide)
    plain = staged_from(folder, drafter=False).executor()
    with pytest.raises(UsageError, match="this bundle has no sync: it holds no drafter"):
        plain.draft(SYNC, wide)
    plain.close()
