"""Fewer launches with the same bits: what a kernel can take along before or behind its own work, it takes along.

Each launch is a barrier of the whole team. Knows kernels by their names and arguments, no models.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from tandem.compile.assembly import Argument, Assembly, Buffer, Launch, Operand

PAIR = 64
"""Outputs of two panels: a gated product takes whole pairs of gates and partners."""
NORMS = ("rms_norm", "add_rms_norm")
TAKEN = ("x", "x_stride", "delta", "delta_stride", "sum", "sum_stride")
"""Arguments of a norm that its product takes over as they are."""


@dataclass(frozen=True, slots=True)
class _Uses:
    """How many launches read each buffer of scratch."""

    readers: Counter[Buffer]

    @classmethod
    def of(cls, launches: Iterable[Launch]) -> _Uses:
        readers: Counter[Buffer] = Counter()
        for launch in launches:
            places = (operand.place for operand in launch.operands("in", "both"))
            readers.update({place for place in places if isinstance(place, Buffer)})
        return cls(readers)

    def only(self, made: Argument, read: Argument) -> bool:
        """Whether `read` is `made`, which nothing else reads."""
        if made != read or not isinstance(made, Operand) or not isinstance(made.place, Buffer):
            return False
        return self.readers[made.place] == 1


Rule = Callable[[Assembly, _Uses, list[Launch]], Launch | None]


def fuse(assembly: Assembly, launches: list[Launch]) -> list[Launch]:
    """The launches with neighbours merged where a rule allows it."""
    for rule, length in RULES:
        uses, merged, i = _Uses.of(launches), list[Launch](), 0
        while i < len(launches):
            group = launches[i : i + length]
            fused = rule(assembly, uses, group) if len(group) == length else None
            merged.append(fused or launches[i])
            i += length if fused else 1
        launches = merged
    return launches


def _norm_linear(assembly: Assembly, uses: _Uses, group: list[Launch]) -> Launch | None:
    """A norm of whole rows, with its residual add, in front of the one product that reads it."""
    norm, linear = group
    before, after = norm.arguments, linear.arguments
    if norm.kernel not in NORMS or not linear.kernel.startswith("linear_") or before.get("groups", 1) != 1:
        return None
    if after["norm"] is not None or not uses.only(before["y"], after["x"]):
        return None
    taken = {name: before[name] for name in TAKEN if name in before}
    return assembly.made(linear.kernel, **after | taken | {"norm": before["weight"], "eps": before["eps"]})


def _linear_swiglu(assembly: Assembly, uses: _Uses, group: list[Launch]) -> Launch | None:
    """The activation of a product whose first half of outputs gates the second."""
    linear, swiglu = group
    before, after = linear.arguments, swiglu.arguments
    if not linear.kernel.startswith("linear_") or swiglu.kernel != "swiglu" or before["bias"] is not None:
        return None
    n, width = before["n"], after["width"]
    whole = isinstance(n, int) and isinstance(width, int) and n == 2 * width and n % PAIR == 0
    if not whole or not uses.only(before["y"], after["x"]):
        return None
    return assembly.made(linear.kernel, **before | {"y": after["y"], "y_stride": after["y_stride"], "gated": 1})


def _rotary_write(assembly: Assembly, uses: _Uses, group: list[Launch]) -> Launch | None:
    """Both rotations and the write to the cache: rotated keys go straight there."""
    q, k, write = (launch.arguments for launch in group)
    if [launch.kernel[:8] for launch in group] != ["rotary", "rotary", "kv_write"] or not uses.only(k["y"], write["k"]):
        return None
    if any(q[name] != k[name] for name in ("cos", "sin", "position", "half", "head_dim")):
        return None
    given = write | {"k": k["x"], "k_stride": k["x_stride"]} | {"q": q["x"], "q_stride": q["x_stride"]}
    shared = {name: q[name] for name in ("cos", "sin", "position", "y", "y_stride", "heads", "half")}
    return assembly.made(f"rotary_{group[2].kernel}", **given | shared)


RULES: tuple[tuple[Rule, int], ...] = ((_norm_linear, 2), (_linear_swiglu, 2), (_rotary_write, 3))
"""Each rule and how many neighbouring launches it looks at."""
