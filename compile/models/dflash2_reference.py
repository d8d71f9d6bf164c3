"""A DFlash2 drafter run eagerly over its own paged cache, several lanes beside each other: what programs are held to.

In float64 it is the truth of its weights; knows nothing of bundles, programs and the target's layers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from tandem.compile.models import dflash2
from tandem.compile.models.dflash2_config import Dflash2Spec
from tandem.compile.models.rope import rope_tables
from tandem.kernels import embedding


class Drafted(NamedTuple):
    """One block's lattice: slot j is for the token j + 1 behind the anchor. Letters as in `dflash2`; O is B - 1."""

    token: Tensor  # [O, k] int32, the likeliest first
    logit: Tensor  # [O, k]
    lse: Tensor  # [O]
    score: Tensor  # [O, k, k]: of each candidate, behind each of the slot before
    walk: Tensor  # [O] int32, places in a row of token

    @property
    def chain(self) -> list[int]:
        """The tokens of the greedy walk."""
        return self.token.gather(1, self.walk.long()[:, None])[:, 0].tolist()


class ReferenceDrafter:
    """The parts of `dflash2` composed, computing in `dtype` with weights cast to it.

    `tensors` holds the drafter's parameters (`dflash2_weights.load_drafter`); `embedding` and `head` [V, H] are the
    target's. Pages are dealt out of order and filled with NaN, so that a wrong read is seen.
    """

    def __init__(
        self,
        spec: Dflash2Spec,
        tensors: Mapping[str, Tensor],
        embedding: Tensor,
        head: Tensor,
        dtype: torch.dtype = torch.float64,
        *,
        lanes: int = 1,
        context_length: int = 512,
        page_tokens: int = 16,
    ) -> None:
        self.spec, self.lengths = spec, [0] * lanes
        pages = -(-(context_length + spec.block_size) // page_tokens)
        order = torch.arange(lanes * pages - 1, -1, -1, dtype=torch.int32)
        self.block_table = order.view(pages, lanes).T.contiguous()
        cos, sin = rope_tables(spec.rope, spec.head_dim, context_length + spec.block_size)
        self.cos, self.sin = torch.from_numpy(cos), torch.from_numpy(sin)
        heads, width = spec.num_key_value_heads, spec.head_dim
        self.caches = [
            (
                torch.full((lanes * pages, heads, width, page_tokens), torch.nan, dtype=dtype),
                torch.full((lanes * pages, heads, page_tokens, width), torch.nan, dtype=dtype),
            )
            for _ in range(spec.num_hidden_layers)
        ]
        self.embedding = embedding.to(dtype)
        cast = {name: tensor.to(dtype) for name, tensor in tensors.items()} | {"head": head.to(dtype)}
        with torch.device("meta"):
            self.fuse, self.lattice = dflash2.Fuse(spec), dflash2.Lattice(spec)
            self.contexts = [dflash2.Context(spec) for _ in self.caches]
            self.blocks = [dflash2.Block(spec) for _ in self.caches]
        _load(self.fuse, cast, "")
        _load(self.lattice, cast, "")
        for layer, parts in enumerate(zip(self.contexts, self.blocks, strict=True)):
            for part in parts:
                _load(part, cast, f"layers.{layer}.")

    @torch.no_grad()
    def sync(self, taps: Mapping[int, Tensor]) -> None:
        """Take in what the target thought of each lane's next tokens: taps [n, tap_width] by lane, in one pass."""
        lane = [lane for lane, rows in taps.items() for _ in rows]
        position = [self.lengths[lane] + i for lane, rows in taps.items() for i in range(len(rows))]
        stored = torch.cat(list(taps.values())).to(self.embedding.dtype)
        x = self.fuse(stored, torch.arange(len(stored), dtype=torch.int32))
        for part, caches in zip(self.contexts, self.caches, strict=True):
            part(x, self._pass(position, lane, position), *caches)
        for one, rows in taps.items():
            self.lengths[one] += len(rows)

    @torch.no_grad()
    def draft(self, anchors: Mapping[int, int]) -> list[Drafted]:
        """A block for each lane, given the last token of its text, in one pass; the lane's other tokens are synced."""
        spec, size = self.spec, self.spec.block_size
        token = _int32([id for anchor in anchors.values() for id in (anchor, *[spec.mask_token_id] * (size - 1))])
        lane = [lane for lane in anchors for _ in range(size)]
        prefix = [self.lengths[i] for i in lane]
        inputs = self._pass([start + i % size for i, start in enumerate(prefix)], lane, prefix)
        h, delta = embedding(token, self.embedding), None
        for block, caches in zip(self.blocks, self.caches, strict=True):
            h, delta = block(h, delta, inputs, *caches)
        slots = _int32([i for i in range(len(lane)) if i % size])
        _, *found = self.lattice(h, delta, inputs, token, slots)
        return [Drafted(*parts) for parts in zip(*(part.split(size - 1) for part in found), strict=True)]

    def _pass(self, position: Sequence[int], lane: Sequence[int], prefix: Sequence[int]) -> dflash2.Pass:
        at = _int32(position)
        return dflash2.Pass(at, _int32(lane), at, _int32(prefix), self.block_table, self.cos, self.sin)


def _load(part: nn.Module, tensors: Mapping[str, Tensor], prefix: str) -> None:
    part.load_state_dict({name: tensors[prefix + name] for name in part.state_dict()}, assign=True)


def _int32(values: Sequence[int]) -> Tensor:
    return torch.tensor(values, dtype=torch.int32)
