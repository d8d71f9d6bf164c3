"""What the compiler makes of attention for sm_90, with no GPU: what is read when, and that tensor cores do the work."""

from __future__ import annotations

from typing import Any

import pytest

from tandem.kernels.cuda import attention, attention_chunk
from tandem.kernels.cuda.launch import Work
from tests.kernels.cuda.test_compiled import WAIT, _ptx

INTEGERS = ("position", "lane", "prefix", "ancestor", "block_table", "count")
HEADS, KV_HEADS, HEAD_DIM = 24, 4, 256
SIZES: dict[str, Any] = {
    "heads": HEADS, "kv_heads": KV_HEADS, "head_dim": HEAD_DIM, "scale": 1 / 16, "q_stride": HEADS * HEAD_DIM,
    "table_stride": 64, "page": 2 * KV_HEADS * 64 * HEAD_DIM, "itemsize": 2,
}  # fmt: skip


def works(rows: int, tree: bool) -> dict[str, Work]:
    return dict(attention.attention_works(rows=rows, context=1024, tree=tree, max_lanes=8, **SIZES))


def parts(name: str, work: Work) -> tuple[str, str]:
    """PTX before and after the wait for the kernel before."""
    kernel = getattr(attention_chunk if name == "attention_chunk" else attention, name)
    pointers = [param.name for param in kernel.signature]
    types = {pointer: "bf16" for pointer in pointers if pointer not in ("m", "l", "acc")}
    before, after = _ptx(kernel, work, **{**types, **{name: "i32" for name in INTEGERS if name in pointers}}).split(
        WAIT
    )
    return before, after


@pytest.mark.parametrize(("rows", "tree"), [(1, False), (32, True)])
def test_a_pass_reads_pages_asynchronously_and_nothing_before_its_wait(rows: int, tree: bool) -> None:
    for name, work in works(rows, tree).items():
        before, after = parts(name, work)
        assert not any(read in before for read in ("ld.global", "cp.async"))
        assert ("cp.async.cg.shared.global" in after) == (name == "attention_split")
        assert ("wgmma.mma_async" in after) == (name == "attention_split" and rows == 32)


def test_a_chunk_multiplies_with_whole_groups_of_warps() -> None:
    before, after = parts("attention_chunk", attention_chunk.attention_chunk_work(rows=2048, **SIZES))
    assert not any(read in before for read in ("ld.global", "cp.async"))
    assert "wgmma.mma_async" in after and "mma.sync" not in after
