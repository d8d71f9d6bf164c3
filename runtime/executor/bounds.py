"""Whether a program's launches stay inside their memory: arguments of their kinds, sizes that the geometry gives.

What Tandem seals holds all of it; this refuses a bundle that is damaged or lies, before it runs. Which numbers bound
which argument stands in the tables of `extents`; nothing here knows a kernel by more than what its numbers mean.
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
from tandem.runtime.executor.extents import (
    BOOKS,
    CACHE,
    EXTENTS,
    FIELDS,
    FLAGS,
    GATHERED,
    GROUP,
    HOMES,
    INPUTS_OF,
    LANES,
    LAYER_STRIDES,
    MAX_HEAD_DIM,
    MAX_TAPS,
    NAMED,
    OPTIONAL,
    PAGE,
    PANEL,
    STORED,
    VERIFIES,
)

Signature = Sequence[str]
"""A kernel's parameters in order: "<in", ">out" and "!both" are pointers, "=n" a whole number, "~x" a real."""

REMEDY = "rebuild the bundle"
MOST = 1 << 31
"""Whole numbers of a launch stay below it."""
WORD = 4
"""Bytes of a number: no pointer lies between two."""


def check(program: Program, signatures: Sequence[Signature], geometry: Geometry, *, extends: bool = False) -> None:
    """Raises BundleCorrupt that names the first launch, kernel and argument that do not fit.

    `signatures` are those of `program.kernels`, in order. `extends`: passes may have more rows than a verify.
    """
    if geometry.page_tokens != PAGE:
        raise BundleCorrupt(f"pages of {geometry.page_tokens} tokens, kernels know those of {PAGE}; {REMEDY}")
    if geometry.max_outputs < MAX_TREE_ROWS:
        raise BundleCorrupt(f"passes of {geometry.max_outputs} outputs, a verify wants {MAX_TREE_ROWS}; {REMEDY}")
    bounds = _Bounds(program, geometry, IoLayout(geometry), geometry.max_rows if extends else geometry.verify_rows)
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
    pass_rows: int

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
        if stem in VERIFIES and min(rows, self.pass_rows) > g.verify_rows:
            return f"is for {g.verify_rows} rows of a verify, a pass here has {self.pass_rows}"
        for word, (region, value) in values.items():
            if region == CONSTANT and value == 0 and word[1:] in OPTIONAL.get(stem, ()):
                continue
            if fault := self._kind(word[0], word[1:], region, value, rows):
                return f"{word[1:]} {fault}"
        given = {word[1:] for word, (region, _) in values.items() if region != CONSTANT}
        if len(given & {"delta", "sum"}) == 1 and ">sum" in values:
            return "delta and sum come together"
        numbers = {word[1:]: value for word, (_, value) in values.items() if word[0] == "="}
        if numbers.get("gated") and "bias" in given:
            return "a gated product takes no bias"
        places = {word[1:]: arguments[i] for i, word in enumerate(signature)}
        return (
            self._where(stem, places)
            or self._numbers(stem, numbers, places)
            or self._extents(stem, form, rows, numbers, values)
        )

    def _kind(self, kind: str, name: str, region: int, value: int, rows: int) -> str | None:
        if kind in "=~":
            least, behind = (0, 2) if name in FLAGS else (0 if name.endswith("_stride") else 1, MOST)
            fits = region == CONSTANT and (kind == "~" or least <= value < behind)
            return None if fits else "is no number in range"
        if region == CONSTANT:
            return "points nowhere"
        place, fields = self.program.regions[region].name, self.layout.fields
        homes = HOMES.get(name, ("scratch", "io", "taps") if name == "x" else ("scratch", "io"))
        if place not in homes:
            return f"is in {place}, not in {homes[0]}"
        if value % WORD:
            return f"is byte {value} of {place}, no multiple of {WORD}"
        if name in FIELDS:
            held = (fields[field] for field in FIELDS[name] if field in fields)
            field = next((field for field in held if field.offset == value), None)
            # Block tables and slots have a row per lane, and who reads ancestors is a verify.
            least = {"block_table": 0, "state_slot": 0, "ancestor": self.geometry.verify_rows}.get(name, rows)
            if field and field.shape[0] < least:
                return f"has {field.shape[0]} entries for {least} rows"
            fits = field is not None
        else:
            fits = name == "count" or place != "io" or value == fields["logits"].offset
        return None if fits else f"is byte {value} of {place}, which is another field"

    def _where(self, stem: str, places: dict[str, tuple[int, int]]) -> str | None:
        """Why arguments do not lie where each other's place asks for: only taps are gathered by what rows read."""
        names = {name: self.program.regions[region].name for name, (region, _) in places.items() if region != CONSTANT}
        if stem == "gather_rows":
            field = next(f for f in FIELDS["row"] if self._offset(f) == places["row"][1])
            if names["x"] not in GATHERED[field]:
                return f"x is in {names['x']}, of which {field} names no rows"
        elif names.get("x") == "taps":
            return "x is in taps, not in scratch"
        if names.get("k_cache") != names.get("v_cache"):
            return "k_cache and v_cache are in two regions"
        return None

    def _offset(self, field: str) -> int:
        """Where a field of io lies, -1 for one that is not there."""
        found = self.layout.fields.get(field)
        return found.offset if found else -1

    def _numbers(self, stem: str, numbers: dict[str, int], places: dict[str, tuple[int, int]]) -> str | None:
        g = self.geometry
        baked = {
            "page_bytes": self._page_bytes(places),
            "table_stride": g.blocks_per_lane,
            "ancestor_stride": MAX_TREE_ROWS,
        }
        baked |= {"slot_bytes": g.state_bytes, "layers": g.recurrent_layers}
        if g.drafter:
            baked |= {"top": g.drafter.top, "ring_stride": g.drafter.tap_width}
            baked |= {"width": g.drafter.tap_width} if stem == "scatter_rows" else {}
            baked |= {"k": g.drafter.top} if stem.startswith("lattice_") else {}
            baked |= {"block": g.drafter.block.rows} if g.drafter.block else {}
        for name, wanted in baked.items():
            if numbers.get(name, wanted) != wanted:
                return f"{name} is {numbers[name]}, the geometry gives {wanted}"
        if numbers.get("heads", 0) % numbers.get("kv_heads", 1):
            return f"kv_heads is {numbers['kv_heads']}, which does not divide the heads"
        if numbers.get("value_heads", 0) % numbers.get("key_heads", 1):
            return f"key_heads is {numbers['key_heads']}, which does not divide the value heads"
        if (wide := max(numbers.get("key_dim", 0), numbers.get("value_dim", 0))) > MAX_HEAD_DIM:
            return f"key_dim or value_dim is {wide}; kernels know up to {MAX_HEAD_DIM}"
        if "group" in numbers and numbers["channels"] % numbers["group"]:
            return f"group is {numbers['group']}, which does not divide the channels"
        if "group" not in numbers and not 2 <= numbers.get("taps", 2) <= MAX_TAPS:
            return f"taps is {numbers['taps']}; kernels know 2 to {MAX_TAPS}"
        head_dim, half = numbers.get("head_dim", 0), numbers.get("half", 0)
        if not 2 * half <= head_dim <= MAX_HEAD_DIM:
            return f"head_dim is {head_dim}, of which {2 * half} turn; kernels know up to {MAX_HEAD_DIM}"
        if stem in ("argmax_gap", "top_k") and not numbers.get("top", 1) <= numbers["width"] <= g.vocab_size:
            return f"width is {numbers['width']}, the vocabulary has {g.vocab_size}"
        if numbers.get("gated") and numbers["n"] % (2 * PANEL):
            return f"n is {numbers['n']}, no whole panels of gates and partners"
        return None

    def _page_bytes(self, places: dict[str, tuple[int, int]]) -> int:
        """Bytes of a page of the cache that a launch reads or writes."""
        drafter, (region, _) = self.geometry.drafter, places.get("k_cache", (CONSTANT, 0))
        if drafter and region != CONSTANT and self.program.regions[region].name == "draft_kv":
            return drafter.page_bytes
        return self.geometry.page_bytes

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
            named = sizes["tap_rows"] if self.program.regions[region].name == "taps" else self.geometry.max_rows
            last = (named if (stem, name) in NAMED else rows) - 1
            # What is neither a matrix, a table nor the cache is fp32 in every kernel.
            item = 1 if "stored" in extents[name] else int(each) if name in (*CACHE, *BOOKS) else 4
            end = value + (row + last * (stride or 0)) * item
            end += (numbers.get("layers", 1) - 1) * numbers.get(LAYER_STRIDES.get(name, ""), 0)
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
            "ids": g.vocab_size,
            "panels": _padded(numbers.get("n", 0), PANEL),
            "padded": _padded(numbers.get("head_dim", 0), LANES),
            "positions": g.context_length + MAX_TREE_ROWS,
            "factor_rows": MAX_TREE_ROWS,
            "tap_rows": g.drafter.tap_rows if g.drafter else 0,
            "moved": numbers.get("taps", 0) * numbers.get("channels", 0) // numbers.get("group", 1),
            "tail_taps": numbers.get("taps", 1) - 1,
            "outputs": numbers.get("n", 0) // (2 if numbers.get("gated") else 1),
            "stored": int(inputs * each) + more,
        }


def _padded(n: int, to: int) -> int:
    return -(-n // to) * to
