"""Composes whole passes from traced parts: embed, the layers one after another, head; and the commit.

Knows the parts' names, not their insides, and no device: a lowering turns each part into launches.
"""

from __future__ import annotations

from dataclasses import dataclass

from tandem.artifacts.io import Geometry, IoLayout
from tandem.artifacts.weights import MappedWeights
from tandem.compile.assembly import Operand
from tandem.compile.lowering import Lowering
from tandem.compile.models.spec import LlamaSpec
from tandem.compile.models.weights import weight_name
from tandem.compile.profile import Format, Profile
from tandem.compile.trace import MOVES, OUTPUTS, ROWS, Part, trace_commit, trace_pass

PAGE_TOKENS = 64
"""Tokens of a page: the tile of the attention kernels."""


@dataclass(frozen=True, slots=True)
class Composer:
    """Everything a program's pointers depend on."""

    spec: LlamaSpec
    profile: Profile
    geometry: Geometry
    weights: MappedWeights

    def lower_pass(self, lowering: Lowering, *, tree: bool) -> None:
        """Appends the launches of a pass that keeps all its rows or, with `tree`, whose rows gather their ancestors."""
        io = IoLayout(self.geometry)
        parts = trace_pass(self.spec, self.profile, PAGE_TOKENS, tree=tree)
        inputs = {name: _field(io, name) for name in io.fields}
        inputs |= {name: self._weight(f"rope.{name}", self._rope_shape()) for name in ("cos", "sin")}
        (h,) = lowering.lower(parts.embed, inputs | self._bound(parts.embed))
        delta: dict[str, Operand] = {}
        for layer in range(self.spec.num_hidden_layers):
            part = parts.block if layer else parts.first
            operands = inputs | self._bound(part, layer) | self._caches(layer) | {"h": h} | delta
            h, out = lowering.lower(part, operands)
            delta = {"delta": out}
        results = [inputs[name] for name in ("logits", "argmax", "gap")]
        lowering.lower(parts.head, inputs | self._bound(parts.head) | {"h": h} | delta, results)

    def lower_commit(self, lowering: Lowering, layers: int) -> None:
        """Appends what moves K and V of the first `layers` layers, one after another."""
        io = IoLayout(self.geometry)
        part = trace_commit(self.spec, self.profile, PAGE_TOKENS)
        inputs = {name: _field(io, name) for name in io.fields}
        for layer in range(layers):
            lowering.lower(part, inputs | self._caches(layer))

    def _bound(self, part: Part, layer: int | None = None) -> dict[str, Operand]:
        """The weights that a part's parameters stand for."""
        shapes = {n.name: tuple(n.meta["val"].shape) for n in part.graph.nodes if n.name in part.parameters}
        return {
            name: self._weight(
                weight_name(self.spec, name, layer), shapes[placeholder], self.profile.format(name, shapes[placeholder])
            )
            for placeholder, name in part.parameters.items()
        }

    def _rope_shape(self) -> tuple[int, int]:
        rows, half = self.weights.shape("rope.cos")
        return rows, half

    def _weight(self, name: str, shape: tuple[int, ...], form: Format = "fp32") -> Operand:
        extent = self.weights.spans[name].nbytes
        return Operand("weights", self.weights.offset(name), extent, shape, shape[-1], dtype=form)

    def _caches(self, layer: int) -> dict[str, Operand]:
        """One layer's planes of a page, in the shapes of the operators' definitions."""
        (k_groups, k_bytes), (v_groups, v_bytes) = self.geometry.kv_planes
        k_extent, v_extent = PAGE_TOKENS * k_groups * k_bytes, PAGE_TOKENS * v_groups * v_bytes
        base = layer * (k_extent + v_extent)
        heads, width = self.spec.num_key_value_heads, self.spec.head_dim
        dtype = "bf16" if self.profile.cache.itemsize == 2 else "fp32"
        return {
            "k_cache": Operand("kv", base, k_extent, (0, heads, width, PAGE_TOKENS), dtype=dtype),
            "v_cache": Operand("kv", base + k_extent, v_extent, (0, heads, PAGE_TOKENS, width), dtype=dtype),
        }


def _field(io: IoLayout, name: str) -> Operand:
    """An io field as an operand, its capacity replaced by the size it was traced with."""
    field = io.fields[name]
    traced = {"output_row": OUTPUTS, "argmax": OUTPUTS, "gap": OUTPUTS, "logits": OUTPUTS}
    rows = MOVES if name.startswith("move_") else traced.get(name, ROWS)
    count = {MOVES: "moves", OUTPUTS: "outputs", ROWS: "rows"}[rows]
    dtype = "int32" if field.dtype == "int32" else "fp32"
    return Operand("io", field.offset, field.nbytes, (rows, *field.shape[1:]), field.shape[-1], count, dtype)
