"""What `tandem-bundle inspect` says of a bundle: as a JSON object, and as lines for people.

Knows nothing of commands.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from tandem.artifacts import layout, signature, trust
from tandem.artifacts.reader import Bundle

_COPIED = (
    *(
        "name",
        "family",
        "profile",
        "device",
        "arithmetic",
        "geometry",
        "drafter",
        "entries",
        "tokenizer",
        "host",
        "proof",
    ),
    *("quality", "build_id", "content_id", "measured_id"),
)
_ORIGIN = {
    trust.Origin.HERE: "native code was built on this machine",
    trust.Origin.ELSEWHERE: "native code comes from elsewhere: tandem-run wants a trusted signature or --trust-native",
    trust.Origin.FORGED: "native code claims this machine falsely: do not load it",
}


def facts(bundle: Bundle) -> dict[str, Any]:
    """Everything worth knowing, in plain JSON values."""
    manifest, fit, signed = bundle.manifest, bundle.fit(), signature.read(bundle.path)
    sizes = {file.path: file.size for file in manifest.files}
    return {
        "path": str(bundle.path),
        "format": manifest.format,
        **msgspec.to_builtins({name: getattr(manifest, name) for name in _COPIED}),
        "bytes": sum(sizes.values()),
        "files": sizes,
        "prices": price_summary(bundle.prices),
        "fit": {
            "grade": fit.grade.value,
            "reasons": [{"field": r.field, "wanted": r.wanted, "found": r.found} for r in fit.reasons],
        },
        "origin": trust.origin(manifest).value,
        "signed_by": signed.hint if signed else None,
    }


def price_summary(prices: dict[str, Any]) -> dict[str, Any]:
    """`measured`, `step_ms`, and per context class the milliseconds of the fewest and most rows of each kind."""
    classes = {name: _class_summary(value) for name, value in prices.items() if isinstance(value, dict)}
    return {"measured": prices.get("measured"), "step_ms": prices.get("step_ms"), "classes": classes}


def _class_summary(kinds: dict[str, Any]) -> dict[str, Any]:
    summary = {}
    for kind, by_rows in kinds.items():
        if isinstance(by_rows, dict):
            counts = sorted((rows for rows in by_rows if rows.isdecimal()), key=int)
            summary[kind] = {rows: by_rows[rows] for rows in dict.fromkeys(counts[:1] + counts[-1:])}
    return summary


def lines(facts: dict[str, Any]) -> Iterator[str]:
    """The facts as text, a line each."""
    geometry, proof, fit = facts["geometry"], facts["proof"], facts["fit"]
    weights = facts["files"][layout.WEIGHTS]
    yield f"{facts['name']}: {facts['family']}, profile {facts['profile']}, device {facts['device']}"
    yield f"  arithmetic  {facts['arithmetic']}: {proof['cases']:,} cases compared, {proof['differing']:,} differ"
    yield from _quality_lines(facts["quality"])
    yield (
        f"  capacity    {geometry['context_length']:,} tokens of context, {geometry['max_lanes']} lanes, "
        f"{geometry['max_rows']} rows a pass, pages of {geometry['page_tokens']} tokens"
    )
    yield f"  size        {_mib(facts['bytes'])} in {len(facts['files'])} files, {_mib(weights)} of it weights"
    yield from _entry_lines(facts["entries"])
    yield from _drafter_lines(facts["drafter"], geometry)
    yield from _gpu_lines(facts["host"])
    yield from _price_lines(facts["prices"])
    yield f"  here        {fit['grade']}"
    for reason in fit["reasons"]:
        yield f"              {reason['field']}: {reason['wanted']} wanted, {reason['found']} found"
    yield f"  origin      {_ORIGIN[trust.Origin(facts['origin'])]}"
    if facts["signed_by"]:
        yield f"  signature   names the key {facts['signed_by'][:16]}; verify --key holds it against one"
    yield f"  build_id    {facts['build_id']}"
    yield f"  content_id  {facts['content_id']}"
    yield f"  measured_id {facts['measured_id']}"


def _quality_lines(quality: dict[str, Any] | None) -> Iterator[str]:
    if quality is None:
        return
    agreement, answers, reference = quality["agreement"], quality["generation"], quality["reference"]
    held = "within its limits" if quality["held"] else "NOT within its limits (sealed under --accept-quality)"
    yield f"  quality     {held}, against {reference} of the same checkpoint"
    for text in quality["texts"]:
        loss, before = text["loss"], text["reference_loss"]
        yield f"              {text['name']}: loss {loss:.4f}, {before:.4f} before, {text['tokens']:,} tokens"
    yield (
        f"              same choice at {agreement['equal']:,} of {agreement['positions']:,} positions, "
        f"at {agreement['confident_equal']:,} of {agreement['confident']:,} confident ones"
    )
    yield (
        f"              {answers['prompts']} free answers: {answers['unique_4grams']:.1%} new 4-grams, "
        f"{answers['reference_unique_4grams']:.1%} before; {answers['stops']} end by themselves, "
        f"{answers['reference_stops']} before"
    )


def _entry_lines(entries: list[dict[str, Any]]) -> Iterator[str]:
    """How many there are, and of each kind which row counts in which context classes, where it has several."""
    kinds, programs = dict.fromkeys(entry["kind"] for entry in entries), {entry["program"] for entry in entries}
    shared = f" in {len(programs)} programs" if len(programs) != len(entries) else ""
    yield f"  entries     {len(entries)}{shared}: {', '.join(kinds)}"
    for kind in kinds:
        rows: dict[int, list[int]] = {}
        for entry in entries:
            if entry["kind"] == kind:
                rows.setdefault(entry["context_class"], []).append(entry["rows"])
        alike: dict[tuple[int, ...], list[int]] = {}
        for context, counts in rows.items():
            alike.setdefault(tuple(sorted(counts)), []).append(context)
        for buckets, contexts in alike.items():
            if contexts != [0] or buckets != (0,):
                yield f"              {kind} {_contexts(sorted(contexts))}: {', '.join(map(_count, buckets))} rows"


def _drafter_lines(drafter: dict[str, Any] | None, geometry: dict[str, Any]) -> Iterator[str]:
    if drafter is not None:
        held = geometry["drafter"]
        block = held.get("block")
        guesses = f"blocks of {block['rows']}" if block else f"chains of {drafter['length']}"
        yield (
            f"  drafter     {drafter['kind']}: {guesses}, {held['top']} guesses a place, "
            f"{held['page_bytes'] // geometry['page_tokens']:,} bytes of K and V a token"
        )


def _contexts(classes: list[int]) -> str:
    if classes == [0]:
        return "at any context"
    span = f"{classes[0]:,} to {classes[-1]:,}" if len(classes) > 1 else f"{classes[0]:,}"
    return f"in {len(classes)} context class{'es' * (len(classes) > 1)}, {span}"


def _count(rows: int) -> str:
    return f"{rows:,}" if rows else "any number of"


def _gpu_lines(host: dict[str, Any]) -> Iterator[str]:
    cuda, gpu = host["validity"]["cuda"], host["price"]["gpu"]
    if cuda is not None:
        yield f"  gpu         compute capability {cuda['capability']}, a driver for CUDA {cuda['driver']} or later"
    if gpu is not None:
        multiprocessors = f"{gpu['multiprocessors']} multiprocessors"
        yield f"              priced on {gpu['product']}, {multiprocessors}, {_mib(gpu['memory'])}"


def _price_lines(prices: dict[str, Any]) -> Iterator[str]:
    yield f"  prices      measured: {prices['measured'] or 'not stated'}"
    for name, kinds in prices["classes"].items():
        for kind, by_rows in kinds.items():
            spans = ", ".join(f"{rows} rows {ms} ms" for rows, ms in by_rows.items())
            yield f"              context {name} {kind}: {spans}"


def _mib(count: int) -> str:
    return f"{count / 2**20:,.1f} MiB"
