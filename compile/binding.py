"""What the placeholders of traced parts stand for: fields of io, weights, caches, states, and the ring of taps.

Knows the parts' names for them, not what parts compute, and no device.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from math import prod

from tandem.artifacts.io import Geometry, IoLayout
from tandem.artifacts.weights import MappedWeights
from tandem.compile.assembly import Operand
from tandem.compile.lowering import ITEM_BYTES
from tandem.compile.models.dflash2_config import Dflash2Spec
from tandem.compile.models.spec import FULL_ATTENTION, HybridSpec, LlamaSpec, layer_types
from tandem.compile.models.weights import weight_name
from tandem.compile.profile import Format, Profile
from tandem.compile.trace import MOVES, OUTPUTS, RING, ROWS, Part
from tandem.keys import MAX_TREE_ROWS

OF_OUTPUTS = (
    "output_row", "wish", "said", "drawn", "argmax", "gap", "logits", "draft_token", "draft_logit", "draft_lse",
    "draft_score", "draft_walk",
)  # fmt: skip
"""Fields of io with a row for each output row."""
DTYPES = {"int32": "int32", "int64": "int64", "float32": "fp32"}
"""Types of operands by those of the fields of io."""
ITEM = 4
"""Bytes of a value of a state, and of all factors but the first."""


@dataclass(frozen=True, slots=True)
class Binding:
    """Everything a program's pointers depend on; `block` is the drafter where it drafts blocks."""

    spec: LlamaSpec
    profile: Profile
    geometry: Geometry
    weights: MappedWeights
    block: Dflash2Spec | None = field(default=None, kw_only=True)

    @property
    def raw(self) -> Format:
        """The type of a convolution's raw inputs in tails and factors."""
        return "fp32"

    def _inputs(self, io: IoLayout) -> dict[str, Operand]:
        """What a part of any pass may be told: fields of io, rope tables, the ring that a drafter reads."""
        inputs = {name: field_operand(io, name) for name in io.fields}
        inputs |= self._turns("rope.cos", "rope.sin")
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

    def _turns(self, cos: str, sin: str) -> dict[str, Operand]:
        """Rope tables of these names."""
        return {part: self._weight(name, self.weights.shape(name)) for part, name in (("cos", cos), ("sin", sin))}

    def _tap(self, index: int) -> dict[str, Operand]:
        """The columns of the ring that hold the stream tapped at place `index`."""
        drafter, width = self.geometry.drafter, self.spec.hidden_size
        assert drafter is not None
        first = ITEM * index * width
        return {"taps": Operand("taps", first, drafter.tap_bytes - first, (RING, width), drafter.tap_width, "taps")}

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
        return self._planes("kv", self.geometry.kv_planes, index, self.spec)

    def _draft_caches(self, index: int) -> dict[str, Operand]:
        """The same of the drafter's."""
        assert self.geometry.drafter is not None
        return self._planes("draft_kv", self.geometry.drafter.kv_planes, index, self.block or self.spec)

    def _planes(
        self, region: str, planes: tuple[tuple[int, int], ...], index: int, spec: LlamaSpec | Dflash2Spec
    ) -> dict[str, Operand]:
        """One layer's planes of a page, in the shapes of the operators' definitions."""
        (k_groups, k_bytes), (v_groups, v_bytes) = planes
        tokens, heads, width = self.geometry.page_tokens, spec.num_key_value_heads, spec.head_dim
        k_extent, v_extent = tokens * k_groups * k_bytes, tokens * v_groups * v_bytes
        base = index * (k_extent + v_extent)
        dtype = "bf16" if self.profile.cache.itemsize == 2 else "fp32"
        return {
            "k_cache": Operand(region, base, k_extent, (0, heads, width, tokens), dtype=dtype),
            "v_cache": Operand(region, base + k_extent, v_extent, (0, heads, tokens, width), dtype=dtype),
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
