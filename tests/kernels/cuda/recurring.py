"""Passes over recurrent layers by the CUDA kernels, on poisoned memory: rows that stay, chains, trees, and commits."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from tests.kernels.cuda.interpreter import interpreted, run
from tests.kernels.cuda.paged import BEYOND, ints
from tests.kernels.recurrent import Rows, normal

SLOTS, LAYERS, LANES, FACTOR_ROWS = 5, 2, 3, 32
FP32 = torch.float32


@dataclass(frozen=True, slots=True)
class Sizes:
    """Heads of a layer: key heads, value heads, their widths, and taps of the convolution."""

    key_heads: int
    heads: int
    dk: int
    dv: int
    width: int = 4

    @property
    def channels(self) -> int:
        return 2 * self.key_heads * self.dk + self.heads * self.dv


class Memory:
    """States, tails and factors of all layers, poisoned where nothing was written; `rows` says who has begun."""

    def __init__(self, sizes: Sizes, rows: Rows, tail_dtype: torch.dtype = FP32) -> None:
        s = self.sizes = sizes
        self.state = normal(6, SLOTS, LAYERS, s.heads, s.dk, s.dv, dtype=FP32)
        self.tail = normal(7, SLOTS, LAYERS, s.width - 1, s.channels, dtype=torch.bfloat16).to(tail_dtype)
        for slot, start in zip(rows.slots, rows.starts, strict=True):
            if start == 0:
                self.state[slot], self.tail[slot] = torch.nan, torch.nan
        self.raw = torch.full((LAYERS, FACTOR_ROWS, s.channels), torch.nan, dtype=tail_dtype)
        self.k, self.u, self.decay = (
            torch.full((LAYERS, FACTOR_ROWS, *shape), torch.nan)
            for shape in ((s.key_heads, s.dk), (s.heads, s.dv), (s.heads,))
        )

    def copy(self) -> Memory:
        other = object.__new__(Memory)
        other.sizes = self.sizes
        for name in ("state", "tail", "raw", "k", "u", "decay"):
            setattr(other, name, getattr(self, name).clone())
        return other

    def at(self, name: str, layer: int) -> Tensor:
        """From a layer of slot 0, or of the factors, to the end: what a pointer points to."""
        whole = getattr(self, name)
        first = whole[0, layer] if name in ("state", "tail") else whole[layer]
        return whole.view(-1)[first.storage_offset() :]


class Case:
    """One layer's weights and the inputs of a pass's rows."""

    def __init__(self, sizes: Sizes, rows: Rows, seed: int = 0) -> None:
        s, count = sizes, len(rows.lane)
        self.sizes, self.rows = sizes, rows
        # Numbers that bf16 holds: how it rounds is the interpreter's affair.
        self.x = normal(seed + 1, count, s.channels, dtype=torch.bfloat16).float()
        self.weight = normal(seed + 2, s.width * s.channels, dtype=FP32)
        self.a, self.b = 3 * normal(seed + 3, count, s.heads, dtype=FP32), normal(seed + 4, count, s.heads, dtype=FP32)
        self.a_log, self.dt_bias = normal(seed + 5, s.heads, dtype=FP32), normal(seed + 6, s.heads, dtype=FP32)

    def run(
        self, memory: Memory, kind: str, bucket: int, rows: Rows | None = None, chosen: list[int] | None = None,
        layer: int = 1,
    ) -> Tensor:  # fmt: skip
        """o [count, heads, dv] of a pass of kind extend, chain or tree; memory's layer moves as the kind says.

        `rows` are those of `chosen` rows of this case, all of them unless given.
        """
        rows, chosen = rows or self.rows, list(range(len(self.x))) if chosen is None else chosen
        where = _where(rows, bucket, len(chosen))
        q, k, v, decay, beta = self._inputs(memory, kind, bucket, where, chosen, layer)
        return self._recurred(memory, kind, bucket, where, (q, k, v, decay, beta), layer, len(chosen))

    def _inputs(
        self, memory: Memory, kind: str, bucket: int, where: dict[str, Tensor], chosen: list[int], layer: int
    ) -> tuple[Tensor, ...]:
        """What `recurrent_inputs` gives: q, k, v as they lie in one row, decay, beta."""
        s, module, verify = self.sizes, interpreted("recurrent_inputs"), kind != "extend"
        x, a, b = (_padded(t[chosen], bucket, 3) for t in (self.x, self.a, self.b))
        y = torch.full((bucket, s.channels), torch.nan)
        decay, beta = (torch.full((bucket, s.heads), torch.nan) for _ in range(2))
        slot = memory.tail[0].numel()
        work = module.recurrent_inputs_work(
            rows=bucket, verify=verify, tree=kind == "tree", width=s.width, key_heads=s.key_heads, dk=s.dk,
            channels=s.channels, heads=s.heads, x_stride=x.stride(0), ab_stride=a.stride(0), slot=slot,
        )  # fmt: skip
        kept: dict[str, Tensor | None] = {"raw": None, "k_factor": None}
        if verify:
            decay = memory.at("decay", layer)
            kept = {"raw": memory.at("raw", layer), "k_factor": memory.at("k", layer)}
        run(
            module.recurrent_inputs, work, x=x, weight=self.weight, a=a, b=b, a_log=self.a_log, dt_bias=self.dt_bias,
            tail=memory.at("tail", layer), decay=decay, beta=beta, y=y, **kept, **where,
        )  # fmt: skip
        if not verify and bucket > module.FEW_ROWS:
            module = interpreted("conv")
            work = module.conv_tail_work(
                rows=bucket, channels=s.channels, width=s.width, x_stride=x.stride(0), slot=slot
            )  # fmt: skip
            run(module.conv_tail, work, x=x, tail=memory.at("tail", layer), **where)
        assert y[len(chosen) :].isnan().all() and beta[len(chosen) :].isnan().all()
        size = s.key_heads * s.dk
        return y, y.view(-1)[size:], y.view(-1)[2 * size :], decay, beta

    def _recurred(
        self, memory: Memory, kind: str, bucket: int, where: dict[str, Tensor], inputs: tuple[Tensor, ...], layer: int,
        count: int,
    ) -> Tensor:  # fmt: skip
        s, module = self.sizes, interpreted("delta")
        o = torch.full((bucket, s.heads * s.dv + 5), torch.nan)
        given: dict[str, Any] = dict(zip(("q", "k", "v", "decay", "beta"), inputs, strict=True))
        sizes: dict[str, Any] = {
            "rows": bucket, "lanes": LANES, "key_heads": s.key_heads, "heads": s.heads, "dk": s.dk, "dv": s.dv,
            "q_stride": s.channels, "k_stride": s.channels, "v_stride": s.channels, "y_stride": o.stride(0),
            "slot": memory.state[0].numel(),
        }  # fmt: skip
        given |= {"state": memory.at("state", layer), "y": o}
        if kind == "extend":
            where = {name: value for name, value in where.items() if name != "parent"}
            run(module.delta_rule, module.delta_rule_work(**sizes), **given, **where)
        else:
            given |= {"u_factor": memory.at("u", layer), "k": memory.at("k", layer)}
            sizes["k_stride"] = s.key_heads * s.dk
            run(module.delta_verify, module.delta_verify_work(tree=kind == "tree", **sizes), **given, **where)
        assert o[count:].isnan().all() and o[:, s.heads * s.dv :].isnan().all()
        return o[:count, : s.heads * s.dv].unflatten(1, (s.heads, s.dv))


def commit(memory: Memory, rows: Rows, paths: list[list[int]], most: int = FACTOR_ROWS) -> None:
    """Moves all layers on by accepted paths."""
    s, module = memory.sizes, interpreted("delta_commit")
    state_slot, *moves = rows.moves(paths)
    padding = ints([BEYOND] * (most - len(moves[0])))
    lane, row, target = (torch.cat((move, padding)) for move in moves)
    shared = {"state_slot": state_slot, "move_lane": lane, "move_row": row, "move_target": target}
    shared["count"] = ints([len(moves[0])])
    work = module.delta_commit_work(
        layers=LAYERS, key_heads=s.key_heads, heads=s.heads, dk=s.dk, dv=s.dv, k_layer=memory.k[0].numel(),
        u_layer=memory.u[0].numel(), decay_layer=memory.decay[0].numel(), layer=memory.state[0, 0].numel(),
        slot=memory.state[0].numel(),
    )  # fmt: skip
    factors = {"k_factor": memory.k, "u_factor": memory.u, "decay_factor": memory.decay}
    run(module.delta_commit, work, **factors, state=memory.state, **shared)
    work = module.conv_commit_work(
        moves=most, layers=LAYERS, lanes=LANES, channels=s.channels, width=s.width, raw_layer=memory.raw[0].numel(),
        layer=memory.tail[0, 0].numel(), slot=memory.tail[0].numel(),
    )  # fmt: skip
    run(module.conv_commit, work, raw=memory.raw, tail=memory.tail, **shared)


def _padded(x: Tensor, bucket: int, pad: int) -> Tensor:
    """[count, N] as the first of `bucket` rows of N + pad; NaN elsewhere."""
    wide = torch.full((bucket, x.shape[1] + pad), torch.nan)
    wide[: len(x), : x.shape[1]] = x
    return wide


def _where(rows: Rows, bucket: int, count: int) -> dict[str, Tensor]:
    """What kernels are told of a pass's rows; those that nobody asked for say what must not be followed."""
    state_slot, *told = rows.where
    padding = ints([BEYOND] * (bucket - count))
    lane, position, parent = (torch.cat((values, padding)) for values in told)
    return {
        "state_slot": state_slot, "lane": lane, "position": position, "parent": parent, "count": ints([count])
    }  # fmt: skip
