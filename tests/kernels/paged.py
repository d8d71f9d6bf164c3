"""A paged cache for kernel tests: pages of NaN dealt to lanes in random order, two layers side by side in each page."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch

from tandem import kernels
from tests.kernels.harness import Argument, call, canvas, library, poisoned, written

PAGE = 64
ANCESTORS = 32
BEYOND = 2**30
"""An index that must never be followed."""
STORED = {"fp32": np.dtype(np.float32), "bf16": np.dtype(np.uint16)}
TORCH = {"fp32": torch.float32, "bf16": torch.bfloat16}


def ints(*values: int) -> np.ndarray:
    return np.array(values, np.int32)


class Paged:
    """One layer's keys and values of `lanes` lanes with `blocks` pages each; the other layer must stay poison."""

    def __init__(
        self, kv_heads: int, head_dim: int, dtype: str = "fp32", lanes: int = 1, blocks: int = 5, seed: int = 0
    ) -> None:
        self.kv_heads, self.head_dim, self.dtype = kv_heads, head_dim, dtype
        self.width, stored = -(-head_dim // 16) * 16, STORED[dtype]
        k_bytes = kv_heads * head_dim * PAGE * stored.itemsize
        v_bytes = kv_heads * PAGE * self.width * stored.itemsize
        self.page_bytes, num_pages = 2 * (k_bytes + v_bytes), lanes * blocks + 1
        self.memory = np.full((num_pages, self.page_bytes), 0xFF, np.uint8)
        # The second layer is the one used; K before V.
        k_at, v_at = k_bytes + v_bytes, 2 * k_bytes + v_bytes
        self.k = self.memory[:, k_at:v_at].view(stored).reshape(num_pages, kv_heads, head_dim, PAGE)
        self.v = self.memory[:, v_at:].view(stored).reshape(num_pages, kv_heads, PAGE, self.width)
        self.start = self.memory.reshape(-1)[k_at:], self.memory.reshape(-1)[v_at:]
        order = np.random.default_rng(seed).permutation(num_pages)[: lanes * blocks]
        self.table = order.reshape(lanes, blocks).astype(np.int32)

    def where(self) -> dict[str, Argument]:
        """The arguments by which a kernel finds the cache."""
        table = np.full((len(self.table), self.table.shape[1] + 2), BEYOND, np.int32)
        table[:, : self.table.shape[1]] = self.table
        return {
            "k_cache": self.start[0], "v_cache": self.start[1], "block_table": table, "table_stride": table.shape[1],
            "page_bytes": self.page_bytes, "kv_heads": self.kv_heads, "head_dim": self.head_dim,
        }  # fmt: skip

    def write(
        self, k: np.ndarray, v: np.ndarray, lane: np.ndarray, slot: np.ndarray,
        path: Path | None = None, threads: int = 1,
    ) -> None:  # fmt: skip
        """k and v [R, G, D]"""
        count, width = len(k), self.kv_heads * self.head_dim
        k, v = poisoned(k.reshape(count, width), width + 3), poisoned(v.reshape(count, width), width + 5)
        call(
            path or library(), f"kv_write_{self.dtype}", threads, count=count, k=k, k_stride=width + 3, v=v,
            v_stride=width + 5, lane=lane, slot=slot, **self.where(),
        )  # fmt: skip

    def turn_and_write(
        self, q: np.ndarray, k: np.ndarray, v: np.ndarray, lane: np.ndarray, slot: np.ndarray, position: np.ndarray,
        cos: np.ndarray, sin: np.ndarray, path: Path | None = None, threads: int = 1,
    ) -> np.ndarray:  # fmt: skip
        """q [R, heads, D], k and v [R, G, D], cos and sin [context, half] -> q rotated."""
        count, heads = q.shape[:2]
        given: dict[str, Argument] = {}
        for i, (name, x) in enumerate({"q": q, "k": k, "v": v}.items()):
            flat = x.reshape(count, -1)
            given |= {name: poisoned(flat, flat.shape[1] + i), f"{name}_stride": flat.shape[1] + i}
        width = heads * self.head_dim
        y = canvas(count, width + 2)
        call(
            path or library(), f"rotary_kv_write_{self.dtype}", threads, count=count, lane=lane, slot=slot, cos=cos,
            sin=sin, position=position, y=y, y_stride=width + 2, heads=heads, half=cos.shape[1], **given,
            **self.where(),
        )  # fmt: skip
        return written(y, count, width).reshape(q.shape)

    def move(
        self, lane: np.ndarray, source: np.ndarray, target: np.ndarray, path: Path | None = None, threads: int = 1
    ) -> None:
        call(
            path or library(), f"kv_move_{self.dtype}", threads, count=len(lane), lane=lane, source=source,
            target=target, **self.where(),
        )  # fmt: skip

    def attend(
        self, q: np.ndarray, position: np.ndarray, lane: np.ndarray, prefix: np.ndarray | None = None,
        ancestor: np.ndarray | None = None, path: Path | None = None, threads: int = 1, scale: float = 0.25,
    ) -> np.ndarray:  # fmt: skip
        """q [R, heads, D] -> [R, heads, D]; the tree kernel where `ancestor` [R, 32] is given."""
        count, heads, width = len(q), q.shape[1], q.shape[1] * self.head_dim
        kernel = f"attention_{'' if ancestor is None else 'tree_'}{self.dtype}"
        nowhere = np.full((count, ANCESTORS), BEYOND, np.int32)
        prefix = np.full(count, BEYOND, np.int32) if prefix is None else prefix
        y = canvas(count, width + 2)
        call(
            path or library(), kernel, threads, count=count, q=poisoned(q.reshape(count, width), width + 3),
            q_stride=width + 3, position=position, lane=lane, prefix=prefix,
            ancestor=nowhere if ancestor is None else ancestor, ancestor_stride=ANCESTORS, y=y, y_stride=width + 2,
            heads=heads, scale=scale, **self.where(),
        )  # fmt: skip
        return written(y, count, width).reshape(q.shape)

    def tensors(self, dtype: torch.dtype | None = None) -> tuple[torch.Tensor, torch.Tensor]:
        """K [P, G, D, T] and V [P, G, T, D] as the reference takes them, widened to `dtype`."""
        stored = TORCH[self.dtype]
        k, v = (torch.from_numpy(np.ascontiguousarray(x)).view(stored) for x in (self.k, self.v[..., : self.head_dim]))
        return k.to(dtype or stored), v.to(dtype or stored)

    def reference(
        self, q: np.ndarray, position: np.ndarray, lane: np.ndarray, dtype: torch.dtype, scale: float = 0.25
    ) -> np.ndarray:
        """The operator over straight rows, computed in `dtype`."""
        unused = torch.zeros(len(q), ANCESTORS, dtype=torch.int32)
        at, lanes, table = map(torch.from_numpy, (position, lane, self.table))
        k, v = self.tensors(dtype)
        return kernels.attention(
            torch.from_numpy(q).to(dtype), k, v, at, lanes, at, unused, table, scale, False
        ).numpy()


def fill(cache: Paged, lane: int, slots: Sequence[int], seed: int = 0, path: Path | None = None) -> None:
    """Random keys and values in `slots` of a lane; the values of a slot depend on `seed` and the slot alone."""
    rows = [np.random.default_rng((seed, slot)).standard_normal((2, cache.kv_heads, cache.head_dim)) for slot in slots]
    k, v = np.array(rows, np.float32).reshape(len(slots), 2, cache.kv_heads, cache.head_dim).swapaxes(0, 1).copy()
    cache.write(k, v, np.full(len(slots), lane, np.int32), ints(*slots), path)
