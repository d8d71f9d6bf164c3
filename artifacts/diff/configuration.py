"""How two bundles differ in what their manifests state: model, configuration, tools, host, quality, trust.

Knows nothing of the files beside the manifests but their signatures.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from tandem.artifacts import layout, signature, trust
from tandem.artifacts.diff.change import Change, files, shown, walk
from tandem.artifacts.manifest import Manifest
from tandem.artifacts.reader import Bundle

KERNELS = ("kernels/cpu/", "kernels/cuda/")
"""Sources of kernels; all others decide what a compiler makes of them."""
_LABELS = ("name", "family", "profile", "device", "arithmetic")
_TOKENIZER = ("bos_token", "eos_token", "stop_ids")


def manifest_changes(one: Manifest, two: Manifest) -> Iterator[Change]:
    """Changes of the manifests' fields, the most telling first. Digests of files are not looked at."""
    before, after = msgspec.to_builtins(one), msgspec.to_builtins(two)
    old, new = before["resolved"], after["resolved"]
    yield from walk("model", _some(before, _LABELS), _some(after, _LABELS))
    yield from walk("checkpoint", old["checkpoint"], new["checkpoint"])
    yield from walk("spec", old["spec"], new["spec"])
    yield from walk("profile", _rest(old["profile"], "name"), _rest(new["profile"], "name"))
    yield from walk("drafter", before.get("drafter"), after.get("drafter"), "drafter")
    yield from walk("geometry", before["geometry"], after["geometry"])
    yield from _source_changes(old["sources"], new["sources"])
    yield from walk("flags", old["flags"], new["flags"], "compiler")
    yield from walk("tools", old["tools"], new["tools"])
    yield from walk("environment", old["environment"], new["environment"])
    yield from walk("programs", old["program_version"], new["program_version"], "program_version")
    yield from _template_changes(one.tokenizer.chat_template, two.tokenizer.chat_template)
    yield from walk("tokenizer", _some(before["tokenizer"], _TOKENIZER), _some(after["tokenizer"], _TOKENIZER))
    yield from walk("proof", before["proof"], after["proof"])
    yield from _quality_changes(before["quality"], after["quality"])
    yield from walk("host", before["host"], after["host"])


def _quality_changes(before: dict[str, Any] | None, after: dict[str, Any] | None) -> Iterator[Change]:
    if before and after:
        yield from walk("quality", before, after)
    elif before or after:
        yield Change("quality", "", before, after, f"measured in the {'first' if before else 'second'} only")


def trust_changes(one: Bundle, two: Bundle) -> Iterator[Change]:
    """Whether both were built here, and by whom they are signed."""
    origins = trust.origin(one.manifest).value, trust.origin(two.manifest).value
    if origins[0] != origins[1]:
        yield Change("origin", "built_here", *origins, f"built {origins[0]} -> {origins[1]}")
    before, after = _signer(one), _signer(two)
    if before != after:
        yield Change("signature", layout.SIGNATURE, before, after, f"signed by key {shown(before)} -> {shown(after)}")


def _signer(bundle: Bundle) -> str | None:
    """How its signature names the key it was made with, which need not be true."""
    signed = signature.read(bundle.path)
    return signed.hint if signed else None


def _some(fields: dict[str, Any], names: tuple[str, ...]) -> dict[str, Any]:
    return {name: fields[name] for name in names}


def _rest(fields: dict[str, Any], name: str) -> dict[str, Any]:
    return {key: value for key, value in fields.items() if key != name}


def _source_changes(before: dict[str, str], after: dict[str, str]) -> Iterator[Change]:
    for topic, ours in (("kernel sources", True), ("compiler sources", False)):
        old, new = ({n: d for n, d in part.items() if n.startswith(KERNELS) is ours} for part in (before, after))
        yield from files(topic, old, new)


def _template_changes(before: str | None, after: str | None) -> Iterator[Change]:
    """The first line of a chat template that differs says more than two long texts."""
    if before is None or after is None:
        yield from walk("tokenizer", before, after, "chat_template")
    elif before != after:
        lines = list(zip([*before.split("\n"), None], [*after.split("\n"), None], strict=False))
        number, (old, new) = next((i, pair) for i, pair in enumerate(lines, 1) if pair[0] != pair[1])
        words = f"chat_template differs from line {number} on: {shown(old)} -> {shown(new)}"
        yield Change("tokenizer", "chat_template", before, after, words)
