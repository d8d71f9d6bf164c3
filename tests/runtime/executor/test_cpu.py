"""The CPU executor on tiny programs made by hand and on a whole tiny model."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tandem.artifacts.io import Geometry, IoLayout
from tandem.artifacts.program import Program
from tandem.compile.assembly import Assembly, Operand
from tandem.errors import BundleCorrupt
from tandem.kernels.build import read_signatures
from tandem.keys import Kind
from tandem.runtime.executor.base import Moves, Rows
from tandem.runtime.executor.cpu import CpuExecutor, Image, aligned
from tandem.runtime.executor.library import Library
from tandem.tree import DraftTree
from tests.compile.models import oracle
from tests.kernels.harness import library
from tests.staged import Lane, Staged, stage
from tests.tiny import VOCAB_SIZE, make_checkpoint

HEADS, DIM, PADDED, LAYERS = 2, 20, 32, 3
IDS = np.random.default_rng(5).integers(0, VOCAB_SIZE, 150).tolist()


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_checkpoint(tmp_path_factory.mktemp("executor") / "qwen3", "qwen3")


@pytest.fixture(scope="module")
def staged(checkpoint: Path) -> Staged:
    return stage(oracle.read_config(checkpoint), oracle.read_tensors(checkpoint), "fp32", checkpoint)


@pytest.fixture
def executor(staged: Staged) -> Iterator[CpuExecutor]:
    made = staged.executor(threads=1)
    yield made
    made.close()


def planes(data: bytes, length: int) -> list[tuple[np.ndarray, np.ndarray]]:
    """K [length, heads, dim] and V [length, heads, padded dim] of each layer, from the bytes of `kv`."""
    values, found = np.frombuffer(data, np.float32), []
    for layer in np.split(values, LAYERS):
        k, v = np.split(layer, [length * HEADS * DIM])
        found.append((k.reshape(length, HEADS, DIM), v.reshape(length, HEADS, PADDED)))
    return found


def test_kv_gives_rows_in_slot_order(executor: CpuExecutor, checkpoint: Path) -> None:
    """Against the float64 model's cache, read slot by slot through its own block table."""
    lane, exact = Lane(executor, pages=[7, 2, 11, 0, 5]), oracle.reference(checkpoint, context_length=256)
    lane.extend(IDS)
    exact.forward(IDS)
    for (k, v), (k_cache, v_cache) in zip(planes(lane.state(), len(IDS)), exact.caches, strict=True):
        for slot in range(len(IDS)):
            page, place = exact.block_table[0, slot // 16], slot % 16
            assert np.abs(k[slot] - k_cache[page, :, :, place].numpy()).max() < 2e-5, slot
            assert np.abs(v[slot, :, :DIM] - v_cache[page, :, place].numpy()).max() < 2e-5, slot
        assert not v[:, :, DIM:].any()


def test_kv_of_fewer_tokens_is_a_prefix_of_each_plane(executor: CpuExecutor) -> None:
    lane = Lane(executor)
    lane.extend(IDS)
    whole = planes(lane.state(), len(IDS))
    for length in (0, 1, 63, 64, 65, 149):
        part = planes(executor.kv(lane.pages, length), length)
        for (k, v), (k_all, v_all) in zip(part, whole, strict=True):
            assert (k == k_all[:length]).all() and (v == v_all[:length]).all()


def test_poison_is_nan_everywhere_and_reaches_no_output(staged: Staged, executor: CpuExecutor) -> None:
    clean = staged.executor(threads=1, poison=False)
    assert np.isnan(np.frombuffer(executor.kv([3, 4], 128), np.float32)).all()
    assert not np.frombuffer(clean.kv([3, 4], 128), np.float32).any()
    tree = DraftTree([1, 2, 3, 4], [-1, 0, 0, 2], [0.5] * 4, ["t"] * 4)
    for length in (1, 63, 64, 70):
        poisoned, plain = Lane(executor), Lane(clean)
        for one, other in (
            (poisoned.extend(IDS[:length]), plain.extend(IDS[:length])),
            (poisoned.verify(Kind.VERIFY_TREE, tree), plain.verify(Kind.VERIFY_TREE, tree)),
        ):
            assert np.isfinite(one).all() and (one == other).all()
    clean.close()


def test_two_executors_at_once_do_not_meddle(staged: Staged) -> None:
    """Two teams over one map of weights, driven from two threads, each with its own text."""
    texts = [IDS[:90], IDS[60:]]
    wanted = []
    for text in texts:
        alone = staged.executor(threads=1)
        wanted.append(Lane(alone).extend(text))
        alone.close()
    found: list[list[np.ndarray]] = [[], []]

    def drive(which: int) -> None:
        mine = staged.executor(threads=2)
        for _ in range(5):
            found[which].append(Lane(mine).extend(texts[which]))
        mine.close()

    threads = [threading.Thread(target=drive, args=(which,)) for which in (0, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for which in (0, 1):
        assert len(found[which]) == 5 and all((logits == wanted[which]).all() for logits in found[which])


@pytest.mark.parametrize("threads", [2, 3, 7])
def test_thread_counts_move_no_bit(staged: Staged, executor: CpuExecutor, threads: int) -> None:
    other = staged.executor(threads=threads)
    mine, theirs = Lane(executor), Lane(other)
    assert (mine.extend(IDS[:70]) == theirs.extend(IDS[:70])).all() and mine.state() == theirs.state()
    other.close()


def test_rows_of_several_lanes_share_a_pass(executor: CpuExecutor) -> None:
    """Lanes with pages of their own, one row each, against each lane alone."""
    pages, lengths = [[9, 1], [4, 8], [0, 3]], [5, 64, 31]
    table, wanted, tokens = np.zeros((3, executor.geometry.blocks_per_lane), np.int32), [], [7, 8, 9]
    for i, (mine, length, token) in enumerate(zip(pages, lengths, tokens, strict=True)):
        lane = Lane(executor, mine)
        lane.extend(IDS[i : i + length])
        wanted.append(lane.extend([token])[0])
        table[i, :2] = mine
    after = [length + 1 for length in lengths]
    outcome = executor.run(Kind.EXTEND, Rows(tokens, lengths, range(3), lengths, after, range(3), table))
    for i in range(3):
        assert (executor.logits(i) == wanted[i]).all()
        assert outcome.argmax[i] == wanted[i].argmax()
        top = np.sort(wanted[i])
        assert outcome.gap[i] == top[-1] - top[-2]
    assert len(outcome.argmax) == len(outcome.gap) == 3 and outcome.ms > 0


def test_outputs_are_the_rows_that_were_asked_for(executor: CpuExecutor) -> None:
    lane = Lane(executor)
    whole = lane.extend(IDS[:30])
    wanted = [0, 3, 4, 29]
    rows = Rows(IDS[:30], range(30), [0] * 30, range(30), range(1, 31), wanted, lane.table)
    outcome = executor.run(Kind.EXTEND, rows)
    assert len(outcome.argmax) == 4
    assert all((executor.logits(i) == whole[row]).all() for i, row in enumerate(wanted))
    executor.run(Kind.EXTEND, replace(rows, output_row=wanted[:0]))  # a chunk in the middle of a prompt


def test_moves_run_in_order(executor: CpuExecutor) -> None:
    lane = Lane(executor, pages=[6, 2])
    lane.extend(IDS[:70])
    before = planes(lane.state(), 70)
    source, target = [66, 68, 69], [62, 66, 67]
    executor.commit(Moves([0, 0, 0], source, target, lane.table))
    expected = list(range(70))
    for a, b in zip(source, target, strict=True):
        expected[b] = expected[a]
    for (k, v), (k_before, v_before) in zip(planes(lane.state(), 70), before, strict=True):
        assert (k == k_before[expected]).all() and (v == v_before[expected]).all()


GEOMETRY = Geometry(64, 8, 32, 32, 1, 64, 4096, ((1, 32), (1, 32)))


def by_hand(**sizes: int) -> Program:
    """y = x + x over the `logits` field, in place of a model; `sizes` of regions replace the true ones."""
    layout = IoLayout(GEOMETRY)
    field, counts = layout.fields["logits"], layout.fields["counts"]
    logits = Operand("io", field.offset, field.nbytes)
    assembly = Assembly(read_signatures(library()))
    strides = {"x_stride": 8, "z_stride": 8, "y_stride": 8, "width": 8}
    assembly.launch("add", count=Operand("io", counts.offset, 4), x=logits, z=logits, y=logits, **strides)
    return assembly.program("0" * 64, {"io": layout.nbytes, "kv": 4096} | sizes)


def bind(program: Program) -> CpuExecutor:
    weights = aligned(128)
    return CpuExecutor(Image(GEOMETRY, weights, Library(library(), 1), {Kind.EXTEND: program}), num_pages=2)


def test_a_program_made_by_hand_runs() -> None:
    executor = bind(by_hand())
    executor.logits(0)[:] = np.arange(8)
    executor.logits(1)[:] = -1.0
    executor.run(Kind.EXTEND, Rows([0], [0], [0], [0], [1], [0], np.zeros((1, 1), np.int32)))
    assert executor.logits(0).tolist() == [2.0 * i for i in range(8)]
    assert (executor.logits(1) == -1.0).all()
    executor.close()
    executor.close()  # twice is no harm


@pytest.mark.parametrize(
    ("sizes", "line"),
    [
        ({"io": IoLayout(GEOMETRY).nbytes + 64}, "bytes of io"),
        ({"io": IoLayout(GEOMETRY).nbytes - 64}, "bytes of io"),
        ({"kv": 4097}, "4097 bytes of kv, not 4096"),
        ({"weights": 129}, "129 bytes of weights, not 128"),
        ({"state": 64}, "64 bytes of state, not 0"),
    ],
)
def test_a_program_for_other_memory_is_refused(sizes: dict[str, int], line: str) -> None:
    with pytest.raises(BundleCorrupt, match=line):
        bind(by_hand(**sizes))


@pytest.mark.parametrize("symbol", ["tdm_no_such", "tdm_run", "tdm_sig_add", "system", "__class__", "_handle", ""])
def test_a_kernel_that_is_not_there_is_named(symbol: str) -> None:
    program = by_hand()
    kernels = tuple(replace(kernel, symbol=symbol) for kernel in program.kernels)
    with pytest.raises(BundleCorrupt, match=f"holds no kernel {symbol}"):
        bind(Program(kernels, program.regions, program.launches, program.params))


@pytest.mark.parametrize("nbytes", [1, 63, 64, 1000])
def test_memory_is_aligned(nbytes: int) -> None:
    for poison in (False, True):
        memory = aligned(nbytes, poison=poison)
        assert memory.nbytes == nbytes and memory.ctypes.data % 64 == 0
        assert (memory == (255 if poison else 0)).all()
