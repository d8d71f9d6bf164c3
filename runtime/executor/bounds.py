"""Whether a program's launches stay inside their memory: arguments of their kinds, sizes that the geometry gives.

What Tandem seals holds all of it; this refuses a bundle that is damaged or lies, before it runs. Which numbers bound
which argument stands in tables; nothing else here knows a kernel.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import prod

import numpy as np

from tandem.artifacts.io import Geometry, IoLayout
from tandem.artifacts.program import CONSTANT, Program
from tandem.errors import BundleCorrupt
from tandem.keys import MAX_TREE_ROWS

Signature = Sequence[str]
"""A kernel's parameters in order: "<in", ">out" and "!both" are pointers, "=n" a whole number, "~x" a real."""

REMEDY = "rebuild the bundle"
MOST = 1 << 31
"""Whole numbers of a launch stay below it."""
OPTIONAL = ("bias", "delta", "norm", "sum")
PANEL, LANES = 32, 16
"""Matrices are padded to panels of so many rows, heads in value pages to so many elements."""

FIELDS: dict[str, tuple[str, ...]] = {
    name: (name,) for name in ("token", "position", "slot", "prefix", "ancestor", "block_table", "argmax", "gap")
} | {"lane": ("lane", "move_lane"), "row": ("output_row",), "source": ("move_source",), "target": ("move_target",)}
"""Arguments that only these fields of io may be: they hold indices, or come back to the host."""
HOMES = (
    dict.fromkeys(("k_cache", "v_cache"), "kv")
    | dict.fromkeys(("weight", "bias", "norm", "cos", "sin"), "weights")
    | dict.fromkeys(("count", *FIELDS), "io")
)
"""Regions of arguments; rows of a pass lie in scratch or in io."""

_Extents = dict[str, tuple[str, ...]]
INPUTS = ("x", "delta", "norm", "sum")
_WIDE: _Extents = dict.fromkeys(("x", "z", "delta", "sum", "y", "weight", "logits"), ("width",))
_TURNS: _Extents = dict.fromkeys(("cos", "sin"), ("positions", "half"))
_WRITTEN: _Extents = dict.fromkeys("kv", ("kv_heads", "head_dim"))
_HEADS: _Extents = dict.fromkeys("qxy", ("heads", "head_dim"))
EXTENTS: dict[str, _Extents] = {
    **dict.fromkeys(("add", "mul", "add_rms_norm", "gather_rows", "argmax_gap"), _WIDE),
    "rms_norm": {"x": ("groups", "width"), "weight": ("width",), "y": ("groups", "width")},
    "swiglu": {"x": ("two", "width"), "y": ("width",)},
    "embedding": {"weight": ("vocab", "stored"), "y": ("k",)},
    "linear": {"weight": ("panels", "stored"), "bias": ("n",), "y": ("outputs",)} | dict.fromkeys(INPUTS, ("k",)),
    "rotary": _HEADS | _TURNS,
    "kv_write": _WRITTEN,
    "rotary_kv_write": _HEADS | _TURNS | _WRITTEN,
    "attention": _HEADS,
    "attention_tree": _HEADS,
}
"""By kernel, less its format: elements of an argument's row where it has a stride, of the whole where it has none."""
STORED = {"fp32": (4, 0), "bf16": (2, 0), "int8": (1, 4), "int4": (5 / 8, 0)}
"""Bytes that one output of a matrix takes: so many per input, and so many more. Low-bit inputs come in groups."""
GROUP = 32
INPUTS_OF = {"fp32": 1, "bf16": 2}
CACHE: _Extents = {"k_cache": ("page", "kv_heads", "head_dim"), "v_cache": ("page", "kv_heads", "padded")}


def check(program: Program, signatures: Sequence[Signature], geometry: Geometry) -> None:
    """Raises BundleCorrupt that names the first launch, kernel and argument that do not fit.

    `signatures` are those of `program.kernels`, in order.
    """
    bounds = _Bounds(program, geometry, IoLayout(geometry))
    for kernel, signature in zip(program.kernels, signatures, strict=True):
        if kernel.num_params != len(signature):
            raise BundleCorrupt(f"{kernel.symbol} takes {len(signature)} arguments, not {kernel.num_params}; {REMEDY}")

    def fault(which: int, arguments: Sequence[tuple[int, int]]) -> str | None:
        return bounds.fault(program.kernels[which].symbol.removeprefix("tdm_"), signatures[which], arguments)

    if all(fault(which, arguments) is None for which, arguments in _farthest(program)):
        return
    params = list(zip(program.params["region"].tolist(), program.params["value"].tolist(), strict=True))
    for i, (which, first, count, _) in enumerate(program.launches.tolist()):
        if found := fault(which, params[first : first + count]):
            raise BundleCorrupt(f"launch {i}, {program.kernels[which].symbol}: {found}; {REMEDY}")


def _farthest(program: Program) -> Iterator[tuple[int, list[tuple[int, int]]]]:
    """(kernel, arguments) that stand for all launches of a program: layers differ by where their pointers lie.

    Launches of one kernel that share regions, constants and fields of io are one, each pointer at its farthest: a
    fault of any of them is one of these.
    """
    region, value = program.params["region"], program.params["value"]
    free = [i for i, memory in enumerate(program.regions) if memory.name != "io"]
    regions, fixed = region.tolist(), np.where(np.isin(region, free), 0, value).tolist()
    alike: dict[tuple[int, tuple[int, ...], tuple[int, ...]], list[int]] = {}
    for which, first, count, _ in program.launches.tolist():
        span = slice(first, first + count)
        alike.setdefault((which, tuple(regions[span]), tuple(fixed[span])), []).append(first)
    for (which, where, _), firsts in alike.items():
        places = np.array(firsts)[:, None] + np.arange(len(where))
        yield which, list(zip(where, value[places].max(axis=0).tolist(), strict=True))


@dataclass(frozen=True, slots=True)
class _Bounds:
    program: Program
    geometry: Geometry
    layout: IoLayout

    def fault(self, kernel: str, signature: Signature, arguments: Sequence[tuple[int, int]]) -> str | None:
        """Why a launch may not run; `arguments` are (region, value) in the signature's order."""
        values = dict(zip(signature, arguments, strict=True))
        for word, (region, value) in values.items():
            if fault := self._kind(word[0], word[1:], region, value):
                return f"{word[1:]} {fault}"
        given = {word[1:] for word, (region, _) in values.items() if region != CONSTANT}
        if len(given & {"delta", "sum"}) == 1:
            return "delta and sum come together"
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
        if numbers.get("gated") and numbers["n"] % (2 * PANEL):
            return f"n is {numbers['n']}, no whole panels of gates and partners"
        return None

    def _extents(self, kernel: str, numbers: dict[str, int], values: dict[str, tuple[int, int]]) -> str | None:
        g, (stem, _, form) = self.geometry, kernel.rpartition("_")
        stem, form = (stem, form) if form in STORED else (kernel, "fp32")
        each, more = STORED[form]
        inputs = _padded(numbers.get("k", 0), INPUTS_OF.get(form, GROUP))
        sizes = numbers | {
            "two": 2,
            "page": g.page_tokens,
            "vocab": _padded(g.vocab_size, PANEL),
            "panels": _padded(numbers.get("n", 0), PANEL),
            "padded": _padded(numbers.get("head_dim", 0), LANES),
            "positions": g.context_length + MAX_TREE_ROWS,
            "outputs": numbers.get("n", 0) // (2 if numbers.get("gated") else 1),
            "stored": int(inputs * each) + more,
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
            # What is neither a matrix nor the cache is fp32 in every kernel.
            item = 1 if "stored" in extents[name] else int(each) if name in CACHE else 4
            end = value + elements * item
            if end > (memory := self.program.regions[region]).nbytes:
                return f"{name} ends at byte {end} of {memory.name}, which has {memory.nbytes}"
        return None


def _padded(n: int, to: int) -> int:
    return -(-n // to) * to
