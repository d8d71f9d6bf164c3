"""What the compiler makes of attention for sm_90, with no GPU: what is read when, and that tensor cores do the work."""

from __future__ import annotations

from typing import Any

import pytest

from tandem.kernels.cuda import attention, attention_chunk
from tandem.kernels.cuda.launch import Work
from tests.kernels.cuda.ptx import GIVEN, WAIT, Early, before_wait
from tests.kernels.cuda.test_compiled import _ptx

INTEGERS = ("position", "lane", "prefix", "ancestor", "block_table", "count")
HEADS, KV_HEADS, HEAD_DIM = 24, 4, 256
SIZES: dict[str, Any] = {
    "heads": HEADS, "kv_heads": KV_HEADS, "head_dim": HEAD_DIM, "scale": 1 / 16, "q_stride": HEADS * HEAD_DIM,
    "table_stride": 64, "page": 2 * KV_HEADS * 64 * HEAD_DIM, "itemsize": 2,
}  # fmt: skip


def works(rows: int, tree: bool) -> dict[str, Work]:
    return dict(attention.attention_works(rows=rows, context=1024, tree=tree, max_lanes=8, **SIZES))


def compiled(name: str, work: Work) -> tuple[Early, str]:
    """What a kernel does before it waits for the one before, and its PTX behind that."""
    kernel = getattr(attention_chunk if name == "attention_chunk" else attention, name)
    pointers = [param.name for param in kernel.signature]
    types = {pointer: "bf16" for pointer in pointers if pointer not in ("m", "l", "acc")}
    ptx = _ptx(kernel, work, **{**types, **{name: "i32" for name in INTEGERS if name in pointers}})
    _before, after = ptx.split(WAIT)
    return before_wait(ptx, pointers), after


@pytest.mark.parametrize(("rows", "tree"), [(1, False), (32, False), (32, True)])
def test_a_pass_asks_for_keys_before_its_wait_and_reads_them_asynchronously_behind_it(rows: int, tree: bool) -> None:
    for name, work in works(rows, tree).items():
        early, after = compiled(name, work)
        assert early.read <= GIVEN and not early.writes
        assert early.asked == (frozenset({"k_cache", "v_cache"}) if name == "attention_split" else frozenset())
        assert ("cp.async.cg.shared.global" in after) == (name == "attention_split")
        assert ("wgmma.mma_async" in after) == (name == "attention_split" and rows == 32)


def test_a_chunk_multiplies_with_whole_groups_of_warps() -> None:
    early, after = compiled("attention_chunk", attention_chunk.attention_chunk_work(rows=2048, **SIZES))
    assert early == Early(frozenset({"count"}), frozenset(), writes=False)
    assert "wgmma.mma_async" in after and "mma.sync" not in after
