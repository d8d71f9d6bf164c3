"""Whether a program's launches stay inside their memory: arguments of their kinds, sizes that the geometry gives.

What Tandem seals holds all of it; this refuses a bundle that is damaged or lies, before it runs. Which numbers bound
which argument stands in tables; nothing else here knows a kernel.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from tandem.artifacts.io import Geometry, IoLayout
from tandem.artifacts.program import CONSTANT, Program
from tandem.errors import BundleCorrupt
from tandem.keys import MAX_TREE_ROWS

Signature = Sequence[str]
"""A kernel's parameters in order: "<in", ">out" and "!both" are pointers, "=n" a whole number, "~x" a real."""

REMEDY = "rebuild the bundle"
MOST = 1 << 31
"""Whole numbers of a launch stay below it."""
OPTIONAL = ("bias",)
PANEL, LANES = 32, 16
"""Matrices are padded to panels of so many rows, heads in value pages to so many elements."""

FIELDS: dict[str, tuple[str, ...]] = {
    name: (name,) for name in ("token", "position", "slot", "prefix", "ancestor", "block_table", "argmax", "gap")
} | {"lane": ("lane", "move_lane"), "row": ("output_row",), "source": ("move_source",), "target": ("move_target",)}
"""Arguments that only these fields of io may be: they hold indices, or come back to the host."""
HOMES = (
    dict.fromkeys(("k_cache", "v_cache"), "kv")
    | dict.fromkeys(("weight", "bias", "cos", "sin"), "weights")
    | dict.fromkeys(("count", *FIELDS), "io")
)
"""Regions of arguments; rows of a pass lie in scratch or in io."""

_Extents = dict[str, tuple[str, ...]]
_WIDE: _Extents = dict.fromkeys(("x", "z", "delta", "sum", "y", "weight", "logits"), ("width",))
_HEADS: _Extents = dict.fromkeys("qxy", ("heads", "head_dim"))
EXTENTS: dict[str, _Extents] = {
    **dict.fromkeys(("add", "mul", "add_rms_norm", "gather_rows", "argmax_gap"), _WIDE),
    "rms_norm": {"x": ("groups", "width"), "weight": ("width",), "y": ("groups", "width")},
    "swiglu": {"x": ("two", "width"), "y": ("width",)},
    "embedding": {"weight": ("vocab", "k"), "y": ("k",)},
    "linear": {"x": ("k",), "weight": ("panels", "k"), "bias": ("n",), "y": ("n",)},
    "rotary": _HEADS | {"cos": ("positions", "half"), "sin": ("positions", "half")},
    "kv_write": {"k": ("kv_heads", "head_dim"), "v": ("kv_heads", "head_dim")},
    "attention": _HEADS,
    "attention_tree": _HEADS,
}
"""By kernel, less its dtype: elements of an argument's row where it has a stride, of the whole where it has none."""
CACHE: _Extents = {"k_cache": ("page", "kv_heads", "head_dim"), "v_cache": ("page", "kv_heads", "padded")}


def check(program: Program, signatures: Sequence[Signature], geometry: Geometry) -> None:
    """Raises BundleCorrupt that names the first launch, kernel and argument that do not fit.

    `signatures` are those of `program.kernels`, in order.
    """
    bounds = _Bounds(program, geometry, IoLayout(geometry))
    for kernel, signature in zip(program.kernels, signatures, strict=True):
        if kernel.num_params != len(signature):
            raise BundleCorrupt(f"{kernel.symbol} takes {len(signature)} arguments, not {kernel.num_params}; {REMEDY}")
    params = list(zip(program.params["region"].tolist(), program.params["value"].tolist(), strict=True))
    for i, (which, first, count, _) in enumerate(program.launches.tolist()):
        symbol = program.kernels[which].symbol
        values = dict(zip(signatures[which], params[first : first + count], strict=True))
        if fault := bounds.fault(symbol.removeprefix("tdm_"), values):
            raise BundleCorrupt(f"launch {i}, {symbol}: {fault}; {REMEDY}")


@dataclass(frozen=True, slots=True)
class _Bounds:
    program: Program
    geometry: Geometry
    layout: IoLayout

    def fault(self, kernel: str, values: dict[str, tuple[int, int]]) -> str | None:
        """Why a launch may not run. `values` holds (region, value) by a parameter's word in the signature."""
        for word, (region, value) in values.items():
            if fault := self._kind(word[0], word[1:], region, value):
                return f"{word[1:]} {fault}"
        numbers = {word[1:]: value for word, (_, value) in values.items() if word[0] == "="}
        return self._baked(numbers) or self._extents(kernel, numbers, values)

    def _kind(self, kind: str, name: str, region: int, value: int) -> str | None:
        if kind in "=~":
            fits = region == CONSTANT and (kind == "~" or value < MOST)
            return None if fits else "is no number in range"
        if region == CONSTANT:
            return None if name in OPTIONAL and value == 0 else "points nowhere"
        place, fields = self.program.regions[region].name, self.layout.fields
        if place != (home := HOMES.get(name, place if place in ("io", "scratch") else "scratch")):
            return f"is in {place}, not in {home}"
        if name == "count":
            fits = value - fields["counts"].offset in (0, 4, 8)
        elif name in FIELDS:
            fits = value in [fields[field].offset for field in FIELDS[name]]
        else:
            fits = place != "io" or value == fields["logits"].offset
        return None if fits else f"is byte {value} of {place}, which is another field"

    def _baked(self, numbers: dict[str, int]) -> str | None:
        g = self.geometry
        baked = {"page_bytes": g.page_bytes, "table_stride": g.blocks_per_lane, "ancestor_stride": MAX_TREE_ROWS}
        for name, wanted in baked.items():
            if numbers.get(name, wanted) != wanted:
                return f"{name} is {numbers[name]}, the geometry gives {wanted}"
        if "kv_heads" in numbers and (not numbers["kv_heads"] or numbers.get("heads", 0) % numbers["kv_heads"]):
            return f"kv_heads is {numbers['kv_heads']}, which does not divide the heads"
        return None

    def _extents(self, kernel: str, numbers: dict[str, int], values: dict[str, tuple[int, int]]) -> str | None:
        g, named = self.geometry, kernel.endswith(("_fp32", "_bf16"))
        stem, item = (kernel[:-5], 2 if kernel.endswith("_bf16") else 4) if named else (kernel, 4)
        sizes = numbers | {
            "two": 2,
            "page": g.page_tokens,
            "vocab": _padded(g.vocab_size, PANEL),
            "panels": _padded(numbers.get("n", 0), PANEL),
            "padded": _padded(numbers.get("head_dim", 0), LANES),
            "positions": g.context_length + MAX_TREE_ROWS,
        }
        place = values["<count"][1] - self.layout.fields["counts"].offset
        capacity = {0: g.max_rows, 4: g.max_outputs, 8: g.max_rows}[place]
        extents = EXTENTS.get(stem, {}) | (CACHE if "kv_heads" in numbers else {})
        for word, (region, value) in values.items():
            name = word[1:]
            if name not in extents or region == CONSTANT:
                continue
            stride = numbers.get(f"{name}_stride")
            elements = prod(sizes[size] for size in extents[name]) + (capacity - 1) * (stride or 0)
            # Rows of a pass and biases are fp32 in every kernel; a kernel's dtype is that of its matrix or cache.
            end = value + elements * (4 if stride is not None or name == "bias" else item)
            if end > (memory := self.program.regions[region]).nbytes:
                return f"{name} ends at byte {end} of {memory.name}, which has {memory.nbytes}"
        return None


def _padded(n: int, to: int) -> int:
    return -(-n // to) * to
