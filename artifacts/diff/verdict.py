"""Compares two bundles: one line that says what it comes to, then each change by topic.

Knows nothing of commands.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from tandem.artifacts import digest, layout
from tandem.artifacts.diff.change import Change
from tandem.artifacts.diff.configuration import manifest_changes, trust_changes
from tandem.artifacts.diff.content import content_changes, digests
from tandem.artifacts.diff.prices import price_changes
from tandem.artifacts.manifest import Manifest
from tandem.artifacts.reader import Bundle

_MARGIN = 18
_IDS = ("build_id", "content_id", "measured_id")


@dataclass(frozen=True, slots=True)
class Difference:
    """What `compare` found. `same_content`: everything but what was measured is equal byte by byte."""

    verdict: str
    same_content: bool
    changes: tuple[Change, ...]


def compare(one: Bundle, two: Bundle, progress: digest.Progress | None = None) -> Difference:
    """Everything that differs from `one` to `two`, both opened. BundleCorrupt for weights that cannot be read."""
    found = (
        *content_changes(one, two, progress),
        *manifest_changes(one.manifest, two.manifest),
        *price_changes(one.prices, two.prices),
        *trust_changes(one, two),
    )
    same = one.manifest.content_id == two.manifest.content_id
    return Difference(_verdict(one.manifest, two.manifest, found), same, found)


def _verdict(one: Manifest, two: Manifest, changes: Sequence[Change]) -> str:
    if one.content_id == two.content_id:
        if one.measured_id != two.measured_id:
            return "same text, other prices: all but the measurements is equal, byte by byte"
        topics = ", ".join(dict.fromkeys(change.topic for change in changes))
        return "the same bundle" + (f", but for its {topics}" if topics else "")
    build = "the same configuration" if one.build_id == two.build_id else "another configuration"
    return f"{_text(one, two)}; {build}"


def _text(one: Manifest, two: Manifest) -> str:
    """What the differences mean for the text of an answer."""
    before, after = _deciding(one), _deciding(two)
    weights = before[layout.WEIGHTS] == after[layout.WEIGHTS]
    if before == after:
        return "same text: weights, tokenizer, programs and kernels are equal"
    if one.resolved.checkpoint != two.resolved.checkpoint:
        return "another checkpoint"
    if one.profile != two.profile:
        return f"one checkpoint in two profiles, {one.profile} and {two.profile}"
    if not weights:
        return "one checkpoint, other weights"
    if digests(one, layout.ORACLE) == digests(two, layout.ORACLE):
        return "same weights, same bits in the identity scenario"
    return "same weights, other bits in the identity scenario"


def _deciding(manifest: Manifest) -> dict[str, Any]:
    """What decides a text, by name."""
    paths = {path: sha for path, sha in digests(manifest).items() if not layout.is_measured(path)}
    about = {"tokenizer": manifest.tokenizer, "context_length": manifest.geometry.context_length}
    return {path: sha for path, sha in paths.items() if path not in (layout.PROOF, layout.ORACLE)} | about


def lines(difference: Difference) -> Iterator[str]:
    """The difference as text, a line each: the verdict, then a change a line, by topic."""
    yield difference.verdict
    for topic, changes in groupby(difference.changes, key=lambda change: change.topic):
        for i, change in enumerate(changes):
            yield f"  {'' if i else topic:<{_MARGIN}}{change.words}"


def facts(one: Bundle, two: Bundle, difference: Difference) -> dict[str, Any]:
    """The difference in plain JSON values."""
    about = (
        {"path": str(bundle.path), "name": bundle.manifest.name, **{n: getattr(bundle.manifest, n) for n in _IDS}}
        for bundle in (one, two)
    )
    return {
        "verdict": difference.verdict,
        "same_content": difference.same_content,
        "bundles": list(about),
        "changes": [
            {"topic": c.topic, "field": c.field, "before": c.before, "after": c.after, "words": c.words}
            for c in difference.changes
        ],
    }
