"""Recurrent states on the CPU executor: slots, snapshots at any position, and programs of hybrids that lie."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tandem.artifacts.program import CONSTANT, Program
from tandem.errors import BundleCorrupt, BundleMismatch, UsageError
from tandem.keys import TARGET_KINDS, Kind
from tandem.runtime.executor.base import Moves, Rows
from tandem.runtime.executor.bounds import check
from tandem.runtime.executor.cpu import CpuExecutor, Image
from tandem.runtime.executor.library import Library
from tandem.tree import DraftTree
from tests.compile.models import oracle
from tests.kernels.harness import library
from tests.staged import Lane, Staged, stage
from tests.tiny import VOCAB_SIZE, make_checkpoint

IDS = np.random.default_rng(8).integers(0, VOCAB_SIZE, 150).tolist()
TREE = DraftTree([9, 8, 7, 6, 5, 4], [-1, 0, 1, 1, 0, 4], [0.5] * 6, ["test"] * 6)


@pytest.fixture(scope="module", params=[("qwen3_5", "fp32"), ("qwen3_5-odd", "bf16")], ids="-".join)
def staged(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Staged:
    family, profile = request.param
    folder: Path = make_checkpoint(tmp_path_factory.mktemp("recurrent") / family, family)
    return stage(oracle.read_config(folder), oracle.read_tensors(folder), profile, folder)


@pytest.fixture
def executor(staged: Staged) -> Iterator[CpuExecutor]:
    made = staged.executor(threads=1)
    yield made
    made.close()


def test_a_text_goes_on_from_any_snapshot(staged: Staged, executor: CpuExecutor) -> None:
    """In another slot, behind other text, in an executor with another team: the pages are what has to stay."""
    lane = Lane(executor)
    snapshots = {}
    for position in (1, 2, 3, 17, 63, 64, 65, 100):
        lane.extend(IDS[lane.length : position])
        snapshots[position] = executor.save(0, position)
    wanted = lane.extend(IDS[100:], chunk=1)
    end = lane.state()
    other = staged.executor(threads=3)
    Lane(other, pages=lane.pages).extend(IDS[:100])
    for position, snapshot in snapshots.items():
        for where, slot in ((executor, 2), (other, 1)):
            assert snapshot.position == position and snapshot.nbytes == where.geometry.state_bytes
            Lane(where, pages=[12, 13, 14], slot=slot).extend([5, 5, 5])
            again = Lane(where, pages=lane.pages, slot=slot)
            where.restore(slot, snapshot)
            again._length = position
            assert (again.extend(IDS[position:], chunk=37)[-32:] == wanted[-32:]).all()
            assert again.state() == end
    other.close()


def test_a_snapshot_is_a_copy(executor: CpuExecutor) -> None:
    lane = Lane(executor)
    lane.extend(IDS[:5])
    snapshot = executor.save(0, 5)
    before = snapshot.state.copy()
    lane.extend(IDS[5:9])
    assert (snapshot.state == before).all() and (executor.save(0, 9).state != before).any()
    executor.restore(1, snapshot)
    snapshot.state[:] = 0
    assert (executor.save(1, 5).state == before).all()


@pytest.mark.parametrize("slot", [-1, -4, 4])
def test_a_slot_that_is_not_there_is_refused(executor: CpuExecutor, slot: int) -> None:
    snapshot = executor.save(3, 0)
    before = [executor.save(each, 0).state.tobytes() for each in range(4)]
    for call in (
        lambda: executor.save(slot, 0),
        lambda: executor.restore(slot, replace(snapshot, state=snapshot.state + 1)),
    ):
        with pytest.raises(UsageError, match=rf"no state slot {slot}; this executor has 0 to 3, ask for one of them"):
            call()
    assert [executor.save(each, 0).state.tobytes() for each in range(4)] == before


def test_a_verify_leaves_every_state(executor: CpuExecutor) -> None:
    lane = Lane(executor)
    lane.extend(IDS[:70])
    before = [executor.save(slot, 0).state for slot in range(executor.num_slots)]
    for kind, tree in ((Kind.VERIFY_TREE, TREE), (Kind.VERIFY_CHAIN, DraftTree.chain(1, [2] * 31, [0.5] * 31, "test"))):
        lane.verify(kind, tree)
        after = [executor.save(slot, 0).state for slot in range(executor.num_slots)]
        assert all((a == b).all() for a, b in zip(after, before, strict=True))


def test_a_text_begins_from_zeros_whatever_its_slot_holds(staged: Staged) -> None:
    """NaNs of poison first, then another text, in an extend and in a commit."""
    executor = staged.executor(threads=1)
    first = Lane(executor).extend(IDS[:40])
    assert np.isfinite(first).all()
    lane = Lane(executor)
    assert (lane.extend(IDS[:40]) == first).all()
    state, lane = lane.state(), Lane(executor)
    lane.verify(Kind.VERIFY_CHAIN, DraftTree.chain(IDS[0], IDS[1:20], [0.5] * 19, "test"))
    lane.commit(range(20))
    lane.extend(IDS[20:40])
    assert lane.state() == state
    executor.close()


def test_a_snapshot_of_another_bundle_is_refused(staged: Staged, executor: CpuExecutor) -> None:
    lane = Lane(executor)
    lane.extend(IDS[:3])
    snapshot, held = executor.save(0, 3), executor.save(1, 0).state
    for other in (replace(snapshot, bundle="ab" * 32), replace(snapshot, state=snapshot.state[:-4])):
        with pytest.raises(BundleMismatch, match=r"a snapshot of \d+ bytes of bundle .*; .*, prefill the text again"):
            executor.restore(1, other)
    assert (executor.save(1, 0).state == held).all()


def test_slots_are_as_many_as_asked_for(staged: Staged) -> None:
    g = staged.composer.geometry
    image = Image(g, staged.weights.data, Library(library(), 1), staged.programs)
    for wanted, found in ((None, g.max_lanes), (1, 1), (9, 9)):
        executor = CpuExecutor(image, num_pages=2, num_slots=wanted)
        assert executor.num_slots == found


def test_rows_that_do_not_say_what_they_follow_are_refused(executor: CpuExecutor) -> None:
    table = np.zeros((1, executor.geometry.blocks_per_lane), np.int32)
    rows = Rows([1, 2], [0, 1], [0, 0], [0, 1], [1, 2], [1], table)
    for wrong in (rows, replace(rows, parent=[-1], state_slot=[0]), replace(rows, parent=[-1, 0])):
        with pytest.raises(ValueError, match="2 rows with"):
            executor.run(Kind.EXTEND, wrong)
    with pytest.raises(ValueError, match="1 rows with 0 parents or places"):
        executor.commit(Moves([0], [0], [0], table, state_slot=[0]))
    for row in (-1, 32):
        with pytest.raises(ValueError, match=rf"rows \[{row}\] are moved; a verify has 32"):
            executor.commit(Moves([0], [0], [0], table, [row], state_slot=[0]))
    places = range(33)
    wide = Rows([1] * 33, places, [0] * 33, places, places, [0], table, parent=range(-1, 32), state_slot=[0])
    with pytest.raises(ValueError, match="a verify of 33 rows, factors are kept of 32"):
        executor.run(Kind.VERIFY_CHAIN, wide)


def edited(staged: Staged, kind: Kind, kernel: str, word: str, **values: int) -> Program:
    """A program of which one argument of the last launch of `kernel` is another, or lies so many bytes `behind`."""
    program, team = staged.programs[kind], Library(library(), 1)
    which = [k.symbol for k in program.kernels].index(f"tdm_{kernel}")
    launch = [launch for launch in program.launches if launch["kernel"] == which][-1]
    params = program.params.copy()
    place = launch["first_param"] + team.signature(f"tdm_{kernel}").index(word)
    params["value"][place] += values.pop("behind", 0)
    for name, value in values.items():
        params[name][place] = value
    return replace(program, params=params)


def checked(staged: Staged, program: Program, **sizes: int) -> None:
    team = Library(library(), 1)
    check(program, [team.signature(k.symbol) for k in program.kernels], replace(staged.composer.geometry, **sizes))


@pytest.mark.parametrize("kind", TARGET_KINDS)
def test_programs_of_hybrids_are_inside(staged: Staged, kind: Kind) -> None:
    checked(staged, staged.programs[kind])


CHAIN, TREES, EXTEND, COMMIT = Kind.VERIFY_CHAIN, Kind.VERIFY_TREE, Kind.EXTEND, Kind.COMMIT
LIES = [
    (EXTEND, "causal_conv", "!tail", {"behind": 4}, "tail ends at byte"),
    (EXTEND, "causal_conv", "!tail", {"region": 0}, "tail is in weights, not in state"),
    (EXTEND, "causal_conv", "=slot_bytes", {"value": 64}, "slot_bytes is 64, the geometry gives"),
    (EXTEND, "causal_conv", "=taps", {"value": 9}, "taps is 9; kernels know 2 to 8"),
    (EXTEND, "causal_conv", "=taps", {"value": 1}, "taps is 1; kernels know 2 to 8"),
    (EXTEND, "causal_conv", "=channels", {"value": 1 << 12}, "x_stride is .*, a row has 4096"),
    (EXTEND, "causal_conv", "<weight", {"region": 5, "value": 0}, "weight is in .*, not in weights"),
    (EXTEND, "causal_conv", "<parent", {"value": 64}, "parent is byte 64 of io, which is another field"),
    (EXTEND, "causal_conv", "<state_slot", {"value": 64}, "state_slot is byte 64 of io"),
    (EXTEND, "delta_rule", "!state", {"value": 1 << 20}, "state ends at byte"),
    (EXTEND, "delta_rule", "=value_dim", {"value": 257}, "key_dim or value_dim is 257; kernels know up to 256"),
    (EXTEND, "delta_rule", "=key_heads", {"value": 5}, "key_heads is 5, which does not divide"),
    (EXTEND, "delta_rule", "=value_heads", {"value": 30}, "v_stride is .*, a row has"),
    (EXTEND, "delta_gates", "<a_log", {"value": 1 << 30}, "a_log ends at byte"),
    (EXTEND, "delta_gates", "=heads", {"value": 1 << 10}, "a_stride is .*, a row has 1024"),
    (EXTEND, "gated_rms_norm", "=groups", {"value": 99}, "x_stride is .*, a row has"),
    (EXTEND, "gated_rms_norm", "=rounded", {"value": 2}, "rounded is no number in range"),
    (EXTEND, "sigmoid_gate", "=width", {"value": 999}, "x_stride is .*, a row has 999"),
    (CHAIN, "conv_verify", ">raw", {"value": 1 << 20}, "raw ends at byte"),
    (CHAIN, "conv_verify", "=tree", {"value": 2}, "tree is no number in range"),
    (TREES, "delta_verify", ">decay_factor", {"behind": 4}, "decay_factor ends at byte"),
    (TREES, "delta_verify", ">u_factor", {"region": CONSTANT, "value": 0}, "u_factor points nowhere"),
    (COMMIT, "conv_commit", "=layers", {"value": 99}, "layers is 99, the geometry gives"),
    (COMMIT, "conv_commit", "=slot_layer_bytes", {"value": 1 << 20}, "tail ends at byte"),
    (COMMIT, "delta_commit", "=factor_layer_bytes", {"value": 1 << 20}, "k_factor ends at byte"),
    (COMMIT, "delta_commit", "<move_row", {"value": 0}, "move_row is byte 0 of io"),
]


@pytest.mark.parametrize(("kind", "kernel", "word", "values", "line"), LIES, ids=[f"{k}-{w}" for _, k, w, *_ in LIES])
def test_a_launch_that_reaches_outside_is_named(
    staged: Staged, kind: Kind, kernel: str, word: str, values: dict[str, int], line: str
) -> None:
    with pytest.raises(BundleCorrupt, match=f"tdm_{kernel}: .*{line}"):
        checked(staged, edited(staged, kind, kernel, word, **values))


@pytest.mark.parametrize(("name", "line"), [("state_bytes", "slot_bytes is"), ("recurrent_layers", "layers is")])
def test_another_geometry_is_refused(staged: Staged, name: str, line: str) -> None:
    with pytest.raises(BundleCorrupt, match=line):
        checked(staged, staged.programs[Kind.COMMIT], **{name: 2 * getattr(staged.composer.geometry, name)})


def opened_with(staged: Staged, kind: Kind, program: Program) -> None:
    image = Image(
        staged.composer.geometry, staged.weights.data, Library(library(), 1), staged.programs | {kind: program}
    )
    CpuExecutor(image, num_pages=2)


@pytest.mark.parametrize("kind", [CHAIN, TREES])
def test_a_verify_is_no_extend_nor_the_other_way_round(staged: Staged, kind: Kind) -> None:
    """An extend of more rows than 32 would write factors, and read ancestors, behind their ends; a verify moves on."""
    with pytest.raises(BundleCorrupt, match=r"tdm_.*: is for 32 rows of a verify, a pass here has 64; rebuild"):
        opened_with(staged, EXTEND, staged.programs[kind])
    with pytest.raises(
        BundleCorrupt, match=f"^{kind} entry: its program takes no factors, as every {kind} does; rebuild"
    ):
        opened_with(staged, kind, staged.programs[EXTEND])


def test_a_commit_is_no_pass(staged: Staged) -> None:
    for kind in (EXTEND, CHAIN, TREES):
        with pytest.raises(BundleCorrupt, match=f"^{kind} entry: its program takes moves, as no {kind} does"):
            opened_with(staged, kind, staged.programs[COMMIT])
        with pytest.raises(BundleCorrupt, match=r"^commit entry: its program takes no moves, as every commit does"):
            opened_with(staged, COMMIT, staged.programs[kind])
