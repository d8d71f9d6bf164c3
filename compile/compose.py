"""Composes whole passes from traced parts: embed, the layers one after another, head; the commit; a drafter's passes.

Knows the parts' names, not their insides, and no device: a lowering turns each part into launches.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from math import prod
from typing import Any

from tandem.artifacts.io import BlockGeometry, DraftGeometry, IoLayout
from tandem.compile.assembly import Operand
from tandem.compile.binding import ITEM, Binding, field_operand
from tandem.compile.lowering import ITEM_BYTES, Lowering
from tandem.compile.models import dflash2_weights
from tandem.compile.models.dflash2_config import Dflash2Spec
from tandem.compile.models.qwen3_5_mtp import TOP
from tandem.compile.models.spec import HybridSpec, LlamaSpec, layer_types
from tandem.compile.models.weights import mtp_weight_name, weight_name
from tandem.compile.profile import Format
from tandem.compile.trace import trace_commit, trace_pass, trace_recurrent_commit
from tandem.compile.trace_drafts import trace_block_draft, trace_block_sync, trace_mtp, trace_tap
from tandem.keys import MAX_TREE_ROWS, Kind

PAGE_TOKENS = 64
"""Tokens of a page: the tile of the attention kernels."""
RING_ROWS = 512
"""Rows of the ring of taps beside those of a pass: how far lanes may be behind before a drafter forgets them."""
GUESSES = ("logits", "draft_token", "draft_logit", "draft_lse")
LATTICE = (*GUESSES, "draft_score", "draft_walk")
"""Fields of io that a draft leaves its results in: of chains, of blocks."""


def recurrent_facts(spec: LlamaSpec, raw: Format = "fp32") -> dict[str, Any]:
    """What `Geometry` says of recurrent layers: how many there are, and what all of them keep.

    `raw` is the type of a convolution's raw inputs in tails and factors.
    """
    if not isinstance(spec, HybridSpec):
        return {}
    layers, kept = spec.num_recurrent_layers, ITEM_BYTES[raw]
    slot = ITEM * prod(spec.state_shape) + kept * prod(spec.tail_shape)
    row = kept * prod(spec.factor_shapes[0]) + ITEM * sum(map(prod, spec.factor_shapes[1:]))
    return {
        "recurrent_layers": layers,
        "state_bytes": layers * -(-slot // ITEM) * ITEM,
        "factor_bytes": layers * MAX_TREE_ROWS * row,
    }


def draft_geometry(spec: LlamaSpec, planes: tuple[tuple[int, int], ...], max_rows: int) -> DraftGeometry:
    """What the layer that drafts takes and gives, its planes of a page those of one of the model's."""
    return DraftGeometry(
        tap_rows=max_rows + RING_ROWS,
        tap_width=spec.hidden_size,
        page_bytes=PAGE_TOKENS * sum(groups * size for groups, size in planes),
        kv_planes=planes,
        top=TOP,
    )


def block_geometry(
    block: Dflash2Spec, planes: tuple[tuple[int, int], ...], max_rows: int, context_length: int
) -> DraftGeometry:
    """What a block drafter takes and gives; `planes` are those of one of its layers."""
    return DraftGeometry(
        tap_rows=max_rows + RING_ROWS,
        tap_width=block.tap_width,
        page_bytes=block.num_hidden_layers * PAGE_TOKENS * sum(groups * size for groups, size in planes),
        kv_planes=planes,
        top=block.selector_top_k,
        block=BlockGeometry(
            rows=block.block_size,
            mask_token=block.mask_token_id,
            context_length=min(block.max_position_embeddings, context_length),
        ),
    )


@dataclass(frozen=True, slots=True)
class Composer(Binding):
    """Appends passes to a lowering."""

    def lower_pass(self, lowering: Lowering, kind: Kind) -> None:
        """Appends the launches of a pass of `kind`: one that keeps all its rows, or a verify."""
        io, tree = IoLayout(self.geometry), kind is Kind.VERIFY_TREE
        keep = kind is Kind.EXTEND or not isinstance(self.spec, HybridSpec)
        tapped = self.geometry.drafter is not None and self.block is None
        parts = trace_pass(self.spec, self.profile, PAGE_TOKENS, tree=tree, keep=keep, tapped=tapped)
        inputs = self._inputs(io)
        (h,) = lowering.lower(parts.embed, inputs | self._bound(parts.embed))
        delta: dict[str, Operand] = {}
        for layer, layer_type in enumerate(layer_types(self.spec)):
            self._lower_tap(lowering, layer, inputs | {"h": h} | delta)
            part = parts.blocks[layer_type] if layer else parts.first
            bound = self._bound(part, partial(weight_name, self.spec, layer=layer))
            operands = inputs | bound | self._memory(layer) | {"h": h} | delta
            h, out = lowering.lower(part, operands)
            delta = {"delta": out}
        self._lower_tap(lowering, self.spec.num_hidden_layers, inputs | {"h": h} | delta)
        results = [inputs[name] for name in ("logits", "argmax", "gap")]
        lowering.lower(parts.head, inputs | self._bound(parts.head) | {"h": h} | delta, results)

    def _lower_tap(self, lowering: Lowering, layer: int, operands: dict[str, Operand]) -> None:
        """What leaves the stream that enters `layer` in the ring, where a drafter reads it."""
        if self.block is not None and layer in self.block.taps:
            lowering.lower(trace_tap(self.spec), operands | self._tap(self.block.taps.index(layer)))

    def lower_draft(self, lowering: Lowering, kind: Kind) -> None:
        """Appends the launches of a drafter's pass, a draft or a sync."""
        if self.block is None:
            self._lower_mtp(lowering, kind)
        elif kind is Kind.SYNC:
            self._lower_block_sync(lowering, self.block)
        else:
            self._lower_block_draft(lowering, self.block)

    def _lower_mtp(self, lowering: Lowering, kind: Kind) -> None:
        assert isinstance(self.spec, HybridSpec)
        parts = trace_mtp(self.spec, self.profile, PAGE_TOKENS, sync=kind is Kind.SYNC)
        named, inputs = partial(mtp_weight_name, self.spec), self._inputs(IoLayout(self.geometry))
        h, delta = lowering.lower(parts.entrance, inputs | self._bound(parts.entrance, named))
        stream = self._draft_caches(0) | {"h": h, "delta": delta}
        out = lowering.lower(parts.block, inputs | self._bound(parts.block, partial(named, layer=0)) | stream)
        if parts.guesses is not None:
            h, delta = out
            operands = inputs | self._bound(parts.guesses, named) | {"h": h, "delta": delta}
            lowering.lower(parts.guesses, operands, [inputs[name] for name in GUESSES])

    def _lower_block_sync(self, lowering: Lowering, block: Dflash2Spec) -> None:
        parts, named = trace_block_sync(block, self.profile, PAGE_TOKENS), self._block_name
        inputs = self._block_inputs()
        (x,) = lowering.lower(parts.fuse, inputs | self._bound(parts.fuse, named))
        for layer in range(block.num_hidden_layers):
            bound = self._bound(parts.context, partial(named, layer=layer))
            lowering.lower(parts.context, inputs | bound | self._draft_caches(layer) | {"x": x})

    def _lower_block_draft(self, lowering: Lowering, block: Dflash2Spec) -> None:
        parts, named = trace_block_draft(self.spec, block, self.profile, PAGE_TOKENS), self._block_name
        inputs = self._block_inputs()
        (h,) = lowering.lower(parts.embed, inputs | self._bound(parts.embed, named))
        delta: dict[str, Operand] = {}
        for layer in range(block.num_hidden_layers):
            part = parts.block if layer else parts.first
            bound = self._bound(part, partial(named, layer=layer)) | self._draft_caches(layer)
            h, out = lowering.lower(part, inputs | bound | {"h": h} | delta)
            delta = {"delta": out}
        operands = inputs | self._bound(parts.lattice, named) | {"h": h} | delta
        lowering.lower(parts.lattice, operands, [inputs[name] for name in LATTICE])

    def _block_name(self, name: str, layer: int | None = None) -> str:
        return dflash2_weights.weight_name(self.spec, name, layer)

    def _block_inputs(self) -> dict[str, Operand]:
        """What a part of a block drafter may be told: positions turn by its own tables."""
        return self._inputs(IoLayout(self.geometry)) | self._turns(dflash2_weights.COS, dflash2_weights.SIN)

    def lower_commit(self, lowering: Lowering, layers: int) -> None:
        """Appends what moves K and V of the first `layers` layers of attention, one after another.

        States of all recurrent layers are moved on by one launch of each kernel.
        """
        io = IoLayout(self.geometry)
        part = trace_commit(self.spec, self.profile, PAGE_TOKENS)
        inputs = {name: field_operand(io, name) for name in io.fields}
        for index in range(layers):
            lowering.lower(part, inputs | self._caches(index))
        if isinstance(self.spec, HybridSpec):
            lowering.lower(trace_recurrent_commit(self.spec), inputs | self._all_states(self.spec))

    @property
    def region_bytes(self) -> dict[str, int]:
        """What programs need of each region, less scratch."""
        g = self.geometry
        sizes = {"weights": len(self.weights.data), "kv": g.page_bytes, "io": IoLayout(g).nbytes}
        sizes |= {"state": g.state_bytes, "factors": g.factor_bytes} if g.recurrent_layers else {}
        sizes |= {"taps": g.drafter.tap_bytes, "draft_kv": g.drafter.page_bytes} if g.drafter else {}
        return sizes | ({"seen": g.seen_bytes} if g.draws else {})
