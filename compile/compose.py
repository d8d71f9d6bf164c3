"""Composes whole programs from traced parts: embed, the layers one after another, head; and the commit.

Knows the parts' names, not their insides.
"""

from __future__ import annotations

from dataclasses import dataclass

from tandem.artifacts.io import Geometry, IoLayout
from tandem.artifacts.program import Program
from tandem.artifacts.weights import MappedWeights
from tandem.compile.assembly import Assembly, Operand
from tandem.compile.fuse_cpu import fuse
from tandem.compile.lower_cpu import Lowering
from tandem.compile.models.spec import LlamaSpec
from tandem.compile.models.weights import weight_name
from tandem.compile.profile import Format, Profile
from tandem.compile.rules_cpu import RULES
from tandem.compile.trace import MOVES, OUTPUTS, ROWS, Part, trace_commit, trace_pass
from tandem.kernels.signature import Signature
from tandem.keys import Kind

PAGE_TOKENS = 64
"""Tokens of a page: the tile of the attention kernel."""
LANES = 16
"""Heads are padded to whole vectors in the value pages."""


def page_planes(spec: LlamaSpec, profile: Profile) -> tuple[tuple[int, int], tuple[int, int]]:
    """One layer's K and V in a page, as (groups, bytes): see `Geometry.kv_planes`."""
    size = profile.cache.itemsize
    padded = -(-spec.head_dim // LANES) * LANES
    return (spec.num_key_value_heads * spec.head_dim, size), (spec.num_key_value_heads, padded * size)


def geometry(spec: LlamaSpec, profile: Profile, context_length: int, *, max_rows: int, max_lanes: int) -> Geometry:
    """Capacities of a bundle for up to `context_length` tokens."""
    planes = page_planes(spec, profile)
    layer_bytes = PAGE_TOKENS * sum(groups * size for groups, size in planes)
    return Geometry(
        context_length=context_length,
        vocab_size=spec.vocab_size,
        max_rows=max_rows,
        max_outputs=32,
        max_lanes=max_lanes,
        page_tokens=PAGE_TOKENS,
        page_bytes=spec.num_hidden_layers * layer_bytes,
        kv_planes=planes,
    )


@dataclass(frozen=True, slots=True)
class Composer:
    """Everything a program's pointers depend on. `binary` is the kernel library's sha256."""

    spec: LlamaSpec
    profile: Profile
    geometry: Geometry
    weights: MappedWeights
    signatures: dict[str, Signature]
    binary: str

    def program(self, kind: Kind) -> Program:
        """Traces, lowers and lays out the program of `kind`."""
        io = IoLayout(self.geometry)
        assembly = Assembly(self.signatures)
        lowering = Lowering(assembly, io, self.geometry.page_bytes, RULES)
        if kind is Kind.COMMIT:
            self._commit(lowering, io)
        else:
            self._pass(lowering, io, tree=kind is Kind.VERIFY_TREE)
            assembly.rewrite(fuse)
        sizes = {"weights": len(self.weights.data), "kv": self.geometry.page_bytes, "io": io.nbytes}
        return assembly.program(self.binary, sizes)

    def _pass(self, lowering: Lowering, io: IoLayout, *, tree: bool) -> None:
        parts = trace_pass(self.spec, self.profile, PAGE_TOKENS, tree=tree)
        inputs = {name: _field(io, name) for name in io.fields}
        inputs |= {name: self._weight(f"rope.{name}", self._rope_shape()) for name in ("cos", "sin")}

        def bound(part: Part, layer: int | None = None) -> dict[str, Operand]:
            shapes = {n.name: tuple(n.meta["val"].shape) for n in part.graph.nodes if n.name in part.parameters}
            return {
                name: self._weight(
                    weight_name(self.spec, name, layer),
                    shapes[placeholder],
                    self.profile.format(name, shapes[placeholder]),
                )
                for placeholder, name in part.parameters.items()
            }

        (h,) = lowering.lower(parts.embed, inputs | bound(parts.embed))
        delta: dict[str, Operand] = {}
        for layer in range(self.spec.num_hidden_layers):
            part = parts.block if layer else parts.first
            operands = inputs | bound(part, layer) | self._caches(layer) | {"h": h} | delta
            h, out = lowering.lower(part, operands)
            delta = {"delta": out}
        results = [inputs[name] for name in ("logits", "argmax", "gap")]
        lowering.lower(parts.head, inputs | bound(parts.head) | {"h": h} | delta, results)

    def _commit(self, lowering: Lowering, io: IoLayout) -> None:
        part = trace_commit(self.spec, self.profile, PAGE_TOKENS)
        inputs = {name: _field(io, name) for name in io.fields}
        for layer in range(self.spec.num_hidden_layers):
            lowering.lower(part, inputs | self._caches(layer))

    def _rope_shape(self) -> tuple[int, int]:
        rows, half = self.weights.shape("rope.cos")
        return rows, half

    def _weight(self, name: str, shape: tuple[int, ...], form: Format = "fp32") -> Operand:
        extent = self.weights.spans[name].nbytes
        return Operand("weights", self.weights.offset(name), extent, shape, shape[-1], dtype=form)

    def _caches(self, layer: int) -> dict[str, Operand]:
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
