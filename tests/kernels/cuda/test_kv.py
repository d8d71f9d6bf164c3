"""The CUDA cache: rows written where their slots lie and nowhere else, moves in their order."""

from __future__ import annotations

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tandem import kernels
from tests.kernels.cuda.interpreter import interpreted, run
from tests.kernels.cuda.paged import BEYOND, Paged, ints


def same(found: torch.Tensor, wanted: torch.Tensor) -> None:
    torch.testing.assert_close(found, wanted, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("kv_heads", "head_dim"), [(1, 16), (3, 80), (5, 64)])
def test_rows_are_written_to_their_slots_alone(kv_heads: int, head_dim: int, dtype: torch.dtype) -> None:
    cache, wanted = (Paged(kv_heads, head_dim, dtype, lanes=2) for _ in range(2))
    lane, slot, bucket = [0, 0, 1, 1], [63, 64, 0, 200], 6
    # Numbers that bf16 holds: how it rounds is the interpreter's affair here.
    k, v = torch.randn(2, bucket, kv_heads, head_dim).bfloat16().float()
    wide_k, wide_v = (torch.full((bucket, kv_heads * head_dim + pad), torch.nan) for pad in (3, 8))
    wide_k[:4, : kv_heads * head_dim], wide_v[:4, : kv_heads * head_dim] = k[:4].flatten(1), v[:4].flatten(1)
    module = interpreted("kv")
    work = module.kv_write_work(
        rows=bucket, kv_heads=kv_heads, head_dim=head_dim, k_stride=wide_k.stride(0), v_stride=wide_v.stride(0),
        table_stride=cache.table.shape[1], page=cache.page,
    )  # fmt: skip
    beyond = [BEYOND] * 2
    run(
        module.kv_write, work, k=wide_k, v=wide_v, lane=ints(lane + beyond), slot=ints(slot + beyond),
        block_table=cache.table, count=ints([4]), k_cache=cache.plane(0), v_cache=cache.plane(1),
    )  # fmt: skip
    for i in range(4):
        wanted.put(lane[i], [slot[i]], k[i : i + 1], v[i : i + 1])
    same(cache.memory, wanted.memory)


Moves = list[tuple[int, int, int]]


@settings(max_examples=30, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 1), st.integers(58, 70), st.integers(58, 70)), max_size=8))
@example([(0, 66, 65), (0, 67, 66), (0, 70, 67), (1, 69, 65)])  # an accepted path
@example([(0, 60, 61), (0, 61, 62), (0, 62, 63)])  # each from what the one before wrote
@example([(0, 60, 64), (0, 61, 64)])  # the last one stays
def test_moves_happen_in_order_in_every_layer(moves: Moves) -> None:
    cache = Paged(2, 16, torch.float32, lanes=2)
    cache.memory.copy_(torch.randn(cache.memory.shape))
    wanted = cache.memory.clone()
    spare = [*moves, (BEYOND,) * 3]
    lane, source, target = (ints([move[i] for move in spare]) for i in range(3))
    for layer in range(cache.layers):
        k, v = wanted[:, layer, 0].transpose(2, 3), wanted[:, layer, 1]
        kernels.kv_move(k, v, lane[:-1], source[:-1], target[:-1], cache.table)
    module = interpreted("kv")
    work = module.kv_move_work(
        moves=len(spare), layers=cache.layers, kv_heads=2, head_dim=16, layer=cache.memory[0, 0].numel(),
        table_stride=cache.table.shape[1], page=cache.page,
    )  # fmt: skip
    run(
        module.kv_move, work, lane=lane, source=source, target=target, block_table=cache.table,
        count=ints([len(moves)]), k_cache=cache.plane(0, layer=0), v_cache=cache.plane(1, layer=0),
    )  # fmt: skip
    same(cache.memory, wanted)
