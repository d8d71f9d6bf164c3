"""Which cases a spec check runs: every row width as chain and as tree, and every pair of other values at least once.

The full product would take days; faults that need three values at once are left to the proof. Knows nothing of models.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields

from tandem.artifacts.io import Geometry
from tandem.keys import MAX_TREE_ROWS

SCRIPTED = ("wrong", "half", "right")
"""Drafters that fill any width."""

DRAFTERS = ("none", *SCRIPTED, "mixed", "lookup")
"""`mixed` has a round of every sort behind every other, so its rounds are narrow: an answer holds many of them."""
SHAPES = ("chain", "tree")
MAX_LANES = 4
WIDE = 8
"""Widths are paired with the other values by band of this size."""

Pair = tuple[tuple[str, object], tuple[str, object]]


@dataclass(frozen=True, slots=True)
class Case:
    """One run of the engine. `width` is the rows of a round over all lanes, `chunk` the rows a prompt takes of a pass.

    `length` is the prompt's; the other lanes have prompts of their own. `threads` is None where a pass has none to
    choose. `sampled` draws the first lane's tokens.
    """

    drafter: str
    shape: str
    width: int
    prompt: str
    length: int
    lanes: int
    threads: int | None
    chunk: int
    sampled: bool

    def __str__(self) -> str:
        return (
            f"drafter {self.drafter}, {self.shape} of {self.width} rows, {self.length} tokens of '{self.prompt}' in "
            f"chunks of {self.chunk}, {self.lanes} lanes, "
            + (f"{self.threads} threads, " if self.threads else "")
            + ("sampled" if self.sampled else "greedy")
        )


def lengths(geometry: Geometry, most: int, *, quick: bool, chunks: Sequence[int] = ()) -> tuple[int, ...]:
    """Prompt lengths around the borders of chunks and pages, none over `most` tokens.

    `chunks` are sizes below the largest that have programs of their own.
    """
    page, chunk = geometry.page_tokens, geometry.max_rows
    borders = [chunk, 1, page + 1, chunk + 1] if quick else [1, 17, 2 * chunk + 5]
    if not quick:
        borders += [border + step for border in (page, *chunks, chunk) for step in (-1, 0, 1)]
    return tuple(sorted({max(1, min(length, most)) for length in borders}))


def design(levels: dict[str, tuple], widths: Iterable[int], filling: dict[str, tuple]) -> list[Case]:
    """Cases over `levels` (values by field of Case, `width` left out) and `widths`, the same for the same arguments.

    Each width comes once per shape, with values of `filling`, which make sure that it really runs, and whatever
    covers most pairs not yet seen; then pairs still missing are run.
    """
    choice = random.Random(0)
    widths = tuple(widths)
    missing = _pairs(levels | {"width": widths})
    cases: list[Case] = []

    def add(fixed: dict[str, object], only: dict[str, tuple]) -> None:
        for name in sorted(_names(), key=lambda name: -len(levels.get(name, widths))):
            if name not in fixed:
                options = list(only.get(name) or levels.get(name, widths))
                choice.shuffle(options)
                fixed[name] = max(options, key=lambda value: len(_met(fixed | {name: value}) & missing))
        missing.difference_update(_met(fixed))
        cases.append(Case(**fixed))  # type: ignore[arg-type]

    for width, shape in itertools.product(widths, levels["shape"]):
        add({"width": width, "shape": shape}, filling)
    while missing:
        (first, value), (second, other) = min(missing, key=str)
        fixed = {first: value, second: other}
        if "width" in fixed:
            fixed["width"] = choice.choice([width for width in widths if _band(width) == fixed["width"]])
        add(fixed, {})
    return cases


def all_widths(*, quick: bool) -> tuple[int, ...]:
    return (1, 2, 5, 8, 16, 17, 31, 32) if quick else tuple(range(1, MAX_TREE_ROWS + 1))


def _names() -> tuple[str, ...]:
    return tuple(field.name for field in fields(Case))


def _band(width: object) -> str:
    assert isinstance(width, int)
    return f"band {(width - 1) // WIDE}"


def _key(name: str, value: object) -> tuple[str, object]:
    return name, _band(value) if name == "width" and isinstance(value, int) else value


def _met(values: dict[str, object]) -> set[Pair]:
    """Every pair of values that a case with these holds."""
    return set(itertools.combinations(sorted(_key(name, value) for name, value in values.items()), 2))


def _pairs(levels: dict[str, tuple]) -> set[Pair]:
    pairs: set[Pair] = set()
    for one, other in itertools.combinations(sorted(levels), 2):
        for value, second in itertools.product(levels[one], levels[other]):
            pairs |= _met({one: value, other: second})
    return pairs
