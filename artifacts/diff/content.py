"""How the files of two bundles differ that decide a text: weights by tensor, kernels, programs, tokenizer, oracle.

Knows nothing of configurations.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from tandem.artifacts import digest, layout
from tandem.artifacts.diff.change import MAX_NAMES, Change, listed, shown, walk
from tandem.artifacts.manifest import EntryRecord, Manifest
from tandem.artifacts.reader import Bundle
from tandem.artifacts.weights import MappedWeights
from tandem.artifacts.weights_header import TensorSpan

_CHUNK = 16 << 20


def digests(manifest: Manifest, prefix: str = "") -> dict[str, str]:
    """sha256 by path of the listed files that begin with `prefix`."""
    return {file.path: file.sha256 for file in manifest.files if file.path.startswith(prefix)}


def content_changes(one: Bundle, two: Bundle, progress: digest.Progress | None = None) -> Iterator[Change]:
    """Changes of all files but the measured ones. `progress` hears of the bytes of weights that were compared."""
    before, after = digests(one.manifest), digests(two.manifest)
    if before[layout.WEIGHTS] != after[layout.WEIGHTS]:
        yield _tensor_change(one.weights, two.weights, progress)
    yield from _binaries(one, two)
    yield from _program_changes(one, two)
    if before[layout.TOKENIZER] != after[layout.TOKENIZER]:
        sha256 = before[layout.TOKENIZER], after[layout.TOKENIZER]
        yield Change("tokenizer", layout.TOKENIZER, *sha256, f"another {layout.TOKENIZER}")
    if before[layout.ORACLE] != after[layout.ORACLE]:
        yield from _oracle_changes(one.json(layout.ORACLE), two.json(layout.ORACLE))
    if before[layout.PROOF] != after[layout.PROOF]:
        yield Change("proof", layout.PROOF, before[layout.PROOF], after[layout.PROOF], f"another {layout.PROOF}")


def _binaries(one: Bundle, two: Bundle) -> Iterator[Change]:
    """The one library of a CPU's bundle by its digest, the many cubins of a GPU's by how many are others."""
    before, after = (tuple(digests(bundle.manifest, layout.KERNELS).values()) for bundle in (one, two))
    if one.on_gpu or two.on_gpu:
        yield from walk("kernels", before, after, "binaries")
    else:
        yield from walk("kernels", ", ".join(before), ", ".join(after), "library")


def _tensor_change(one: MappedWeights, two: MappedWeights, progress: digest.Progress | None) -> Change:
    before, after = _tensors(one), _tensors(two)
    both = [name for name in before if name in after]
    formats = [name for name in both if _format(before[name]) != _format(after[name])]
    values = [
        name for name in both if name not in set(formats) and not _equal(one.bytes(name), two.bytes(name), progress)
    ]
    parts = [f"{len(formats) + len(values)} of {len(both)} tensors differ"]
    if formats:
        first = formats[0]
        old, new = shown(_format(before[first])), shown(_format(after[first]))
        parts.append(f"stored otherwise: {len(formats)}, first {first} {old} -> {new}")
    if values:
        parts.append(f"other values: {len(values)}, first {values[0]}")
    for which, names in (("first", before.keys() - after.keys()), ("second", after.keys() - before.keys())):
        if names:
            parts.append(f"in the {which} only: {len(names)}, such as {min(names)}")
    facts = {"tensors": len(before)}, {"tensors": len(after), "formats": formats, "values": values}
    return Change("weights", layout.WEIGHTS, *facts, "; ".join(parts))


def _tensors(weights: MappedWeights) -> dict[str, TensorSpan]:
    return {name: span for name, span in weights.spans.items() if not name.startswith("pad.")}


def _format(span: TensorSpan) -> list[Any]:
    return [span.dtype, *span.shape]


def _equal(one: np.ndarray, two: np.ndarray, progress: digest.Progress | None) -> bool:
    """Whether two tensors hold the same bytes, up to the first piece that does not."""
    same = True
    for start in range(0, len(one), _CHUNK):
        same = same and np.array_equal(one[start : start + _CHUNK], two[start : start + _CHUNK])
        if progress:
            progress(len(one[start : start + _CHUNK]))
    return same


def _program_changes(one: Bundle, two: Bundle) -> Iterator[Change]:
    """A change for each entry whose program is another, and one for all where they are many of a sort."""
    before, after = _programs(one.manifest), _programs(two.manifest)
    sorts: dict[str, list[str]] = {}
    for name in sorted(before.keys() | after.keys()):
        old, new = before.get(name), after.get(name)
        if not (old and new):
            sorts.setdefault(f"in the {'first' if old else 'second'} only", []).append(name)
        elif old.sha256 != new.sha256:
            counts = one.read_program(old).launches.size, two.read_program(new).launches.size
            words = f"{counts[0]:,} -> {counts[1]:,} launches" if counts[0] != counts[1] else "other arguments"
            sorts.setdefault(words, []).append(name)
    for words, names in sorts.items():
        old_shas, new_shas = ({name: side[name].sha256 for name in names if name in side} for side in (before, after))
        if len(names) > MAX_NAMES:
            yield Change("programs", "", old_shas, new_shas, f"{len(names)} entries: {words}: {listed(names)}")
            continue
        for name in names:
            yield Change("programs", name, old_shas.get(name), new_shas.get(name), f"{name}: {words}")


def _programs(manifest: Manifest) -> dict[str, EntryRecord]:
    """Entries by the part of their key that tells the entries of one bundle apart."""
    return {f"{e.kind} {e.context_class} {e.rows} {e.part}".replace(" 0 0 whole", ""): e for e in manifest.entries}


def _oracle_changes(before: dict[str, Any], after: dict[str, Any]) -> Iterator[Change]:
    """Per scenario the first of its digests that differs: from there on the two compute other bits."""
    for name in sorted(before.keys() | after.keys()):
        one, two = before.get(name), after.get(name)
        if one == two:
            continue
        steps = list(zip(one, two, strict=False)) if isinstance(one, list) and isinstance(two, list) else []
        apart = [old for old, new in steps if old != new]
        if one is None or two is None:
            yield Change("oracle", name, one, two, f"{name}: in the {'second' if one is None else 'first'} only")
            continue
        first = f", first at {apart[0][0]}" if apart and isinstance(apart[0], list) and apart[0] else ""
        yield Change("oracle", name, one, two, f"{name}: {len(apart)} of {len(steps)} digests differ{first}")
