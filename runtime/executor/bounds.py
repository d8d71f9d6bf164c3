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
OPTIONAL = {"linear": ("bias", "delta", "norm", "sum")}
"""By kernel: pointers that may be null."""
WORD = 4
"""Bytes of a number: no pointer lies between two."""
PANEL, LANES, PAGE, MAX_HEAD_DIM = 32, 16, 64, 256
"""As kernels have them: matrices are padded to panels of so many rows, heads in value pages to so many elements, pages
hold so many tokens; no head is wider."""

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
    if geometry.page_tokens != PAGE:
        raise BundleCorrupt(f"pages of {geometry.page_tokens} tokens, kernels know those of {PAGE}; {REMEDY}")
    if geometry.max_outputs < MAX_TREE_ROWS:
        raise BundleCorrupt(f"passes of {geometry.max_outputs} outputs, a verify wants {MAX_TREE_ROWS}; {REMEDY}")
    bounds = _Bounds(program, geometry, IoLayout(geometry))
    for kernel, signature in zip(program.kernels, signatures, strict=True):
        if (given := len(kernel.param_sizes)) != len(signature):
            raise BundleCorrupt(f"{kernel.symbol} takes {len(signature)} arguments, not {given}; {REMEDY}")

    def fault(which: int, arguments: Sequence[tuple[int, int]]) -> str | None:
        return bounds.fault(program.kernels[which].symbol.removeprefix("tdm_"), signatures[which], arguments)

    pointers = program.params["value"][program.params["region"] != CONSTANT]
    if not np.any(pointers % WORD) and all(fault(which, given) is None for which, given in _farthest(program)):
        return
    params = list(zip(program.params["region"].tolist(), program.params["value"].tolist(), strict=True))
    for i, (which, first, count, *_) in enumerate(program.launches.tolist()):
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
    for which, first, count, *_ in program.launches.tolist():
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
        stem, _, form = kernel.rpartition("_")
        stem, form = (stem, form) if form in STORED else (kernel, "fp32")
        place = values["<count"][1] - self.layout.fields["counts"].offset
        g = self.geometry
        rows = {0: g.max_rows, 4: g.max_outputs, 8: g.verify_rows}.get(place)
        if rows is None:
            return f"count is byte {values['<count'][1]} of io, which is another field"
        for word, (region, value) in values.items():
            if region == CONSTANT and value == 0 and word[1:] in OPTIONAL.get(stem, ()):
                continue
            if fault := self._kind(word[0], word[1:], region, value, rows):
                return f"{word[1:]} {fault}"
        given = {word[1:] for word, (region, _) in values.items() if region != CONSTANT}
        if len(given & {"delta", "sum"}) == 1:
            return "delta and sum come together"
        numbers = {word[1:]: value for word, (_, value) in values.items() if word[0] == "="}
        if numbers.get("gated") and "bias" in given:
            return "a gated product takes no bias"
        return self._numbers(stem, numbers) or self._extents(stem, form, rows, numbers, values)

    def _kind(self, kind: str, name: str, region: int, value: int, rows: int) -> str | None:
        if kind in "=~":
            least = 0 if name == "gated" or name.endswith("_stride") else 1
            fits = region == CONSTANT and (kind == "~" or least <= value < MOST)
            return None if fits else "is no number in range"
        if region == CONSTANT:
            return "points nowhere"
        place, fields = self.program.regions[region].name, self.layout.fields
        if place != (home := HOMES.get(name, place if place in ("io", "scratch") else "scratch")):
            return f"is in {place}, not in {home}"
        if value % WORD:
            return f"is byte {value} of {place}, no multiple of {WORD}"
        if name in FIELDS:
            field = next((fields[field] for field in FIELDS[name] if fields[field].offset == value), None)
            # A block table has a row per lane, and who reads ancestors is a verify.
            least = {"block_table": 0, "ancestor": self.geometry.verify_rows}.get(name, rows)
            if field and field.shape[0] < least:
                return f"has {field.shape[0]} entries for {least} rows"
            fits = field is not None
        else:
            fits = name == "count" or place != "io" or value == fields["logits"].offset
        return None if fits else f"is byte {value} of {place}, which is another field"

    def _numbers(self, stem: str, numbers: dict[str, int]) -> str | None:
        g = self.geometry
        baked = {"page_bytes": g.page_bytes, "table_stride": g.blocks_per_lane, "ancestor_stride": MAX_TREE_ROWS}
        for name, wanted in baked.items():
            if numbers.get(name, wanted) != wanted:
                return f"{name} is {numbers[name]}, the geometry gives {wanted}"
        if numbers.get("heads", 0) % numbers.get("kv_heads", 1):
            return f"kv_heads is {numbers['kv_heads']}, which does not divide the heads"
        head_dim, half = numbers.get("head_dim", 0), numbers.get("half", 0)
        if not 2 * half <= head_dim <= MAX_HEAD_DIM:
            return f"head_dim is {head_dim}, of which {2 * half} turn; kernels know up to {MAX_HEAD_DIM}"
        if stem == "argmax_gap" and numbers["width"] > g.vocab_size:
            return f"width is {numbers['width']}, the vocabulary has {g.vocab_size}"
        if numbers.get("gated") and numbers["n"] % (2 * PANEL):
            return f"n is {numbers['n']}, no whole panels of gates and partners"
        return None

    def _extents(
        self, stem: str, form: str, rows: int, numbers: dict[str, int], values: dict[str, tuple[int, int]]
    ) -> str | None:
        each = STORED[form][0]
        sizes = self._sizes(form, numbers)
        extents = EXTENTS.get(stem, {}) | (CACHE if "kv_heads" in numbers else {})
        for word, (region, value) in values.items():
            name = word[1:]
            if region == CONSTANT or name in FIELDS or name == "count":
                continue
            if name not in extents:
                return f"{name} has no bounds"
            row, stride = prod(sizes[size] for size in extents[name]), numbers.get(f"{name}_stride")
            if stride is not None and stride < row:
                return f"{name}_stride is {stride}, a row has {row}"
            # Gathered rows are any of the pass.
            last = (self.geometry.max_rows if stem == "gather_rows" and name == "x" else rows) - 1
            # What is neither a matrix nor the cache is fp32 in every kernel.
            item = 1 if "stored" in extents[name] else int(each) if name in CACHE else 4
            end = value + (row + last * (stride or 0)) * item
            if end > (memory := self.program.regions[region]).nbytes:
                return f"{name} ends at byte {end} of {memory.name}, which has {memory.nbytes}"
        return None

    def _sizes(self, form: str, numbers: dict[str, int]) -> dict[str, int]:
        """What the words of EXTENTS stand for in a launch with these numbers."""
        g, (each, more) = self.geometry, STORED[form]
        inputs = _padded(numbers.get("k", 0), INPUTS_OF.get(form, GROUP))
        return numbers | {
            "two": 2,
            "page": PAGE,
            "vocab": _padded(g.vocab_size, PANEL),
            "panels": _padded(numbers.get("n", 0), PANEL),
            "padded": _padded(numbers.get("head_dim", 0), LANES),
            "positions": g.context_length + MAX_TREE_ROWS,
            "outputs": numbers.get("n", 0) // (2 if numbers.get("gated") else 1),
            "stored": int(inputs * each) + more,
        }


def _padded(n: int, to: int) -> int:
    return -(-n // to) * to
