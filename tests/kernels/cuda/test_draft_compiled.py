"""What the compiler makes of draft blocks' kernels for sm_90, with no GPU: what is read when, and who multiplies."""

from __future__ import annotations

import pytest

from tandem.kernels.cuda import draft_block, lattice
from tandem.kernels.cuda.launch import TritonKernel, Work
from tests.kernels.cuda.ptx import GIVEN, WAIT, Early, before_wait
from tests.kernels.cuda.test_compiled import _ptx

INTEGERS = {"position", "lane", "prefix", "block_table", "output_row", "token", "candidate", "greedy", "count"}
SHAPES = [(32, 8, 128, 16), (9, 3, 64, 8), (9, 3, 64, 16), (24, 4, 256, 16), (6, 2, 16, 32)]
"""Query heads, kv heads, head_dim and rows of a block: the 27B shape, SmolLM2 twice, wide heads, long blocks."""
WINDOW = 2048


def attention(rows: int, shape: tuple[int, int, int, int], itemsize: int) -> tuple[Work, Work]:
    heads, kv_heads, head_dim, block = shape
    return draft_block.block_attention_works(
        rows=rows, heads=heads, kv_heads=kv_heads, head_dim=head_dim, block=block, window=WINDOW, context=32_768,
        scale=0.125, q_stride=heads * head_dim, table_stride=520, page=1 << 20, itemsize=itemsize,
    )  # fmt: skip


def compiled(kernel: TritonKernel, work: Work, *values: str, dtype: str = "bf16") -> tuple[Early, str]:
    """What a kernel does before it waits, and its PTX behind that; pointers named in `values` are of `dtype`."""
    names = [param.name for param in kernel.signature]
    types = {name: "i32" if name in INTEGERS else dtype if name in values else "fp32" for name in names}
    ptx = _ptx(kernel, work, **types)
    return before_wait(ptx, names), ptx.split(WAIT)[1]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("dtype", ["bf16", "fp32"])
def test_attention_asks_for_its_context_before_its_wait(shape: tuple[int, int, int, int], dtype: str) -> None:
    split, merge = attention(128, shape, 2 if dtype == "bf16" else 4)
    early, after = compiled(draft_block.block_attention_split, split, "q", "k_cache", "v_cache", dtype=dtype)
    assert early.read <= GIVEN and early.asked == {"k_cache", "v_cache"} and not early.writes
    assert ("wgmma.mma_async" in after or "mma.sync" in after) == (dtype == "bf16")  # which cut fp32 to tf32
    assert ("cp.async.cg.shared.global" in after) == (dtype == "bf16")
    early, _after = compiled(draft_block.block_attention_merge, merge, "y", dtype=dtype)
    assert early == Early(frozenset({"count", "prefix"}), frozenset(), writes=False)


def test_a_tile_and_its_spans_are_of_the_model_alone_and_fill_a_device() -> None:
    works = [attention(rows, SHAPES[0], 2)[0] for rows in (16, 32, 64, 128)]
    assert {(w.num_warps, w.num_stages) for w in works} == {(4, 3)}
    assert [w.grid for w in works] == [(8, lanes, 18) for lanes in (1, 2, 4, 8)]
    kept = [{name: value for name, value in w.constants if name != "ROWS"} for w in works]
    assert all(constants == kept[0] for constants in kept)


@pytest.mark.parametrize("parts", [1, 4])
def test_a_convolution_reads_its_weight_before_it_waits(parts: int) -> None:
    work = draft_block.block_conv_work(
        rows=32, width=5120, taps=4, group=16, parts=parts, x_stride=5120 * parts, delta_stride=2560, y_stride=5120
    )
    early, after = compiled(draft_block.block_conv, work, "y")
    assert early == Early(frozenset({"count", "position", "prefix", "weight"}), frozenset(), writes=False)
    assert "fma.rn.f32" in after and "mul.f32" in after.replace(".rn", "")


@pytest.mark.parametrize(("k", "rank"), [(16, 256), (16, 8), (32, 100), (2, 1)])
@pytest.mark.parametrize("dtype", ["bf16", "fp32"])
def test_a_lattice_reads_what_rows_are_before_it_waits_and_fuses_no_sum(k: int, rank: int, dtype: str) -> None:
    work = lattice.lattice_scores_work(slots=32, k=k, rank=rank, gate_stride=rank)
    early, after = compiled(lattice.lattice_scores, work, "predecessor", "successor", dtype=dtype)
    assert early.read <= GIVEN and not early.asked and not early.writes
    assert "fma" not in after
    early, _after = compiled(lattice.lattice_walk, lattice.lattice_walk_work(32, k))
    assert early.read <= GIVEN and not early.asked and not early.writes
