"""A difference between two bundles, and the plain way to find those of two records.

Knows nothing of bundles.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tandem.artifacts import canonical

MAX_SHOWN = 60
"""Characters of a value that a line quotes."""
MAX_NAMES = 4
"""Names that a line lists before it counts the rest."""


@dataclass(frozen=True, slots=True)
class Change:
    """`field` of `topic` was `before` (a JSON value, None where absent) and is `after`; `words` say so to people."""

    topic: str
    field: str
    before: Any
    after: Any
    words: str


def walk(topic: str, before: Any, after: Any, field: str = "") -> Iterator[Change]:
    """A change for every leaf in which two JSON values differ; 1, 1.0 and true are three values."""
    if canonical.encode_compact(before) == canonical.encode_compact(after):
        return
    if isinstance(before, dict) and isinstance(after, dict):
        for key in sorted(before.keys() | after.keys()):
            yield from walk(topic, before.get(key), after.get(key), f"{field}.{key}" if field else key)
    elif _is_texts(before) and _is_texts(after):
        yield Change(topic, field, before, after, f"{field} {_exchanged(before, after)}")
    else:
        yield Change(topic, field, before, after, f"{field} {shown(before)} -> {shown(after)}".lstrip())


def shown(value: Any) -> str:
    """A JSON value in a few characters; digests by their first twelve."""
    if value is None:
        return "none"
    if isinstance(value, str):
        text = value[:12] if re.fullmatch("[0-9a-f]{64}", value) else " ".join(value.split())
    elif isinstance(value, int) and not isinstance(value, bool):
        text = f"{value:,}"
    else:
        text = canonical.encode_compact(value).decode()
    return text if len(text) <= MAX_SHOWN else text[: MAX_SHOWN - 1] + "…"


def listed(names: Sequence[str]) -> str:
    """The first of `names`, and how many more."""
    rest = len(names) - MAX_NAMES
    return ", ".join(names[:MAX_NAMES]) + (f" and {rest} more" if rest > 0 else "")


def files(topic: str, before: Mapping[str, str], after: Mapping[str, str]) -> Iterator[Change]:
    """A change each for the files that have another digest, are gone, or are new; the arguments map path to digest."""
    both = before.keys() & after.keys()
    parts = {
        "changed": [name for name in both if before[name] != after[name]],
        "gone": list(before.keys() - both),
        "new": list(after.keys() - both),
    }
    for what, names in parts.items():
        if names:
            names.sort()
            old, new = ({name: side[name] for name in names if name in side} for side in (before, after))
            yield Change(topic, what, old, new, f"{len(names)} {what}: {listed(names)}")


def _is_texts(value: Any) -> bool:
    return isinstance(value, list | tuple) and all(isinstance(item, str) for item in value)


def _exchanged(before: Sequence[str], after: Sequence[str]) -> str:
    """What a list of words lost and gained."""
    gone, new = ([item for item in some if item not in others] for some, others in ((before, after), (after, before)))
    parts = [f"without {listed(gone)}"] * bool(gone) + [f"with {listed(new)}"] * bool(new)
    return ", ".join(parts) or "in another order"
