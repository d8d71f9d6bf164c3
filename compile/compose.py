"""Composes whole passes from traced parts: embed, the layers one after another, head; the commit; a drafter's passes.

Knows the parts' names, not their insides, and no device: a lowering turns each part into launches.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from math import prod
from typing import Any

from tandem.artifacts.io import DraftGeometry, Geometry, IoLayout
from tandem.artifacts.weights import MappedWeights
from tandem.compile.assembly import Operand
from tandem.compile.lowering import ITEM_BYTES, Lowering
from tandem.compile.models.qwen3_5_mtp import TOP
from tandem.compile.models.spec import FULL_ATTENTION, HybridSpec, LlamaSpec, layer_types
from tandem.compile.models.weights import mtp_weight_name, weight_name
from tandem.compile.profile import Format, Profile
from tandem.compile.trace import (
    MOVES,
    OUTPUTS,
    RING,
    ROWS,
    Part,
    trace_commit,
    trace_draft,
    trace_pass,
    trace_recurrent_commit,
)
from tandem.keys import MAX_TREE_ROWS, Kind

PAGE_TOKENS = 64
"""Tokens of a page: the tile of the attention kernels."""
OF_OUTPUTS = (
    "output_row", "wish", "said", "drawn", "argmax", "gap", "logits", "draft_token", "draft_logit", "draft_lse",
)  # fmt: skip
"""Fields of io with a row for each output row."""
DTYPES = {"int32": "int32", "int64": "int64", "float32": "fp32"}
"""Types of operands by those of the fields of io."""
RING_ROWS = 512
"""Rows of the ring of taps beside those of a pass: how far lanes may be behind before a drafter forgets them."""
ITEM = 4
"""Bytes of a value of a state, and of all factors but the first."""


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


@dataclass(frozen=True, slots=True)
class Composer:
    """Everything a program's pointers depend on."""

    spec: LlamaSpec
    profile: Profile
    geometry: Geometry
    weights: MappedWeights

    def lower_pass(self, lowering: Lowering, kind: Kind) -> None:
        """Appends the launches of a pass of `kind`: one that keeps all its rows, or a verify."""
        io, tree = IoLayout(self.geometry), kind is Kind.VERIFY_TREE
        keep = kind is Kind.EXTEND or not isinstance(self.spec, HybridSpec)
        tapped = self.geometry.drafter is not None
        parts = trace_pass(self.spec, self.profile, PAGE_TOKENS, tree=tree, keep=keep, tapped=tapped)
        inputs = self._inputs(io)
        (h,) = lowering.lower(parts.embed, inputs | self._bound(parts.embed))
        delta: dict[str, Operand] = {}
        for layer, layer_type in enumerate(layer_types(self.spec)):
            part = parts.blocks[layer_type] if layer else parts.first
            bound = self._bound(part, partial(weight_name, self.spec, layer=layer))
            operands = inputs | bound | self._memory(layer) | {"h": h} | delta
            h, out = lowering.lower(part, operands)
            delta = {"delta": out}
        results = [inputs[name] for name in ("logits", "argmax", "gap")]
        lowering.lower(parts.head, inputs | self._bound(parts.head) | {"h": h} | delta, results)

    def lower_draft(self, lowering: Lowering, kind: Kind) -> None:
        """Appends the launches of a drafter's pass, a draft or a sync."""
        io, drafter = IoLayout(self.geometry), self.geometry.drafter
        assert isinstance(self.spec, HybridSpec) and drafter is not None
        parts = trace_draft(self.spec, self.profile, PAGE_TOKENS, sync=kind is Kind.SYNC)
        named, inputs = partial(mtp_weight_name, self.spec), self._inputs(io)
        h, delta = lowering.lower(parts.entrance, inputs | self._bound(parts.entrance, named))
        caches = self._planes("draft_kv", drafter.kv_planes, 0)
        stream = {"h": h, "delta": delta}
        out = lowering.lower(parts.block, inputs | self._bound(parts.block, partial(named, layer=0)) | caches | stream)
        if parts.guesses is not None:
            h, delta = out
            results = [inputs[name] for name in ("logits", "draft_token", "draft_logit", "draft_lse")]
            operands = inputs | self._bound(parts.guesses, named) | {"h": h, "delta": delta}
            lowering.lower(parts.guesses, operands, results)

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
    def raw(self) -> Format:
        """The type of a convolution's raw inputs in tails and factors."""
        return "fp32"

    @property
    def region_bytes(self) -> dict[str, int]:
        """What programs need of each region, less scratch."""
        g = self.geometry
        sizes = {"weights": len(self.weights.data), "kv": g.page_bytes, "io": IoLayout(g).nbytes}
        sizes |= {"state": g.state_bytes, "factors": g.factor_bytes} if g.recurrent_layers else {}
        sizes |= {"taps": g.drafter.tap_bytes, "draft_kv": g.drafter.page_bytes} if g.drafter else {}
        return sizes | ({"seen": g.seen_bytes} if g.draws else {})

    def _inputs(self, io: IoLayout) -> dict[str, Operand]:
        """What a part of any pass may be told: fields of io, rope tables, the ring that a drafter reads."""
        inputs = {name: field_operand(io, name) for name in io.fields}
        inputs |= {name: self._weight(f"rope.{name}", self._rope_shape()) for name in ("cos", "sin")}
        if drafter := self.geometry.drafter:
            shape = (RING, drafter.tap_width)
            inputs["taps"] = Operand("taps", 0, drafter.tap_bytes, shape, drafter.tap_width, "taps")
        return inputs

    def _bound(self, part: Part, named: Callable[[str], str] | None = None) -> dict[str, Operand]:
        """The weights that a part's parameters stand for; `named` gives their full names, by default the model's."""
        named = named or partial(weight_name, self.spec)
        shapes = {n.name: tuple(n.meta["val"].shape) for n in part.graph.nodes if n.name in part.parameters}
        return {
            name: self._weight(named(name), shapes[placeholder], self.profile.format(name, shapes[placeholder]))
            for placeholder, name in part.parameters.items()
        }

    def _rope_shape(self) -> tuple[int, int]:
        rows, half = self.weights.shape("rope.cos")
        return rows, half

    def _weight(self, name: str, shape: tuple[int, ...], form: Format = "fp32") -> Operand:
        extent = self.weights.spans[name].nbytes
        return Operand("weights", self.weights.offset(name), extent, shape, shape[-1], dtype=form)

    def _memory(self, layer: int) -> dict[str, Operand]:
        """Where `layer` keeps what it knows of a lane: its place is that among layers of its own type."""
        types = layer_types(self.spec)
        index = types[:layer].count(types[layer])
        if types[layer] == FULL_ATTENTION:
            return self._caches(index)
        assert isinstance(self.spec, HybridSpec)
        return self._states(self.spec, index)

    def _caches(self, index: int) -> dict[str, Operand]:
        """K and V of one layer of attention."""
        return self._planes("kv", self.geometry.kv_planes, index)

    def _planes(self, region: str, planes: tuple[tuple[int, int], ...], index: int) -> dict[str, Operand]:
        """One layer's planes of a page, in the shapes of the operators' definitions."""
        (k_groups, k_bytes), (v_groups, v_bytes) = planes
        k_extent, v_extent = PAGE_TOKENS * k_groups * k_bytes, PAGE_TOKENS * v_groups * v_bytes
        base = index * (k_extent + v_extent)
        heads, width = self.spec.num_key_value_heads, self.spec.head_dim
        dtype = "bf16" if self.profile.cache.itemsize == 2 else "fp32"
        return {
            "k_cache": Operand(region, base, k_extent, (0, heads, width, PAGE_TOKENS), dtype=dtype),
            "v_cache": Operand(region, base + k_extent, v_extent, (0, heads, PAGE_TOKENS, width), dtype=dtype),
        }

    def _states(self, spec: HybridSpec, index: int) -> dict[str, Operand]:
        """One recurrent layer's part of a slot, and its factors.

        A slot has the states of all layers, then their tails; factors lie layer by layer.
        """
        layers, kept = spec.num_recurrent_layers, ITEM_BYTES[self.raw]
        state, tail = ITEM * prod(spec.state_shape), kept * prod(spec.tail_shape)
        operands = {
            "state": Operand("state", index * state, state, (0, *spec.state_shape)),
            "tail": Operand("state", layers * state + index * tail, tail, (0, *spec.tail_shape), dtype=self.raw),
        }
        offset = index * self.geometry.factor_bytes // layers
        for name, shape in zip(("raw", "k", "u", "decay"), spec.factor_shapes, strict=True):
            dtype: Format = self.raw if name == "raw" else "fp32"
            extent = ITEM_BYTES[dtype] * MAX_TREE_ROWS * prod(shape)
            operands[f"factors_{name}"] = Operand("factors", offset, extent, (MAX_TREE_ROWS, *shape), dtype=dtype)
            offset += extent
        return operands

    def _all_states(self, spec: HybridSpec) -> dict[str, Operand]:
        """As `_states` of the first layer, for launches that go on to the last one's."""
        first, last = self._states(spec, 0), self._states(spec, spec.num_recurrent_layers - 1)
        return {
            name: replace(operand, extent=last[name].offset + last[name].extent - operand.offset)
            for name, operand in first.items()
        }


def field_operand(io: IoLayout, name: str) -> Operand:
    """An io field as an operand, its capacity replaced by the size it was traced with."""
    field = io.fields[name]
    rows = MOVES if name.startswith("move_") else OUTPUTS if name in OF_OUTPUTS else ROWS
    count = {MOVES: "moves", OUTPUTS: "outputs", ROWS: "rows"}[rows]
    dtype = DTYPES[field.dtype]
    return Operand("io", field.offset, field.nbytes, (rows, *field.shape[1:]), field.shape[-1], count, dtype)
