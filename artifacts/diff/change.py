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


def files(topic: str, field: str, before: Mapping[str, str], after: Mapping[str, str]) -> Iterator[Change]:
    """One change for all files whose digests differ; `before` and `after` map a name to a digest."""
    both = before.keys() & after.keys()
    parts = {
        "changed": sorted(name for name in both if before[name] != after[name]),
        "gone": sorted(before.keys() - both),
        "new": sorted(after.keys() - both),
    }
    if any(parts.values()):
        names = {name for part in parts.values() for name in part}
        words = "; ".join(f"{len(part)} {what}: {listed(part)}" for what, part in parts.items() if part)
        yield Change(topic, field, _some(before, names), _some(after, names), words)


def _some(digests: Mapping[str, str], names: set[str]) -> dict[str, str]:
    return {name: digest for name, digest in digests.items() if name in names}
