"""Every way in which this suite spoils a bundle: each of its files, and each field of its manifest.

Knows nothing of how a bundle is read.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

Spoil = Callable[[Path], object]
"""Spoils the file at a path."""
Place = tuple[str | int, ...]
"""Keys from a manifest's top to a value."""


def _cut(share: float) -> Spoil:
    return lambda path: path.write_bytes(path.read_bytes()[: int(len(path.read_bytes()) * share)])


def _flip(share: float, mask: int) -> Spoil:
    def flip(path: Path) -> None:
        data = bytearray(path.read_bytes())
        data[min(int(len(data) * share), len(data) - 1)] ^= mask
        path.write_bytes(data)

    return flip


def _link(path: Path) -> None:
    """The same bytes, but the file lies elsewhere."""
    path.symlink_to(path.rename(path.parents[1] / f"moved-{path.name}"))


def _become(make: Callable[[Path], object]) -> Spoil:
    def become(path: Path) -> None:
        path.unlink()
        make(path)

    return become


FILE_MUTATIONS: dict[str, Spoil] = {
    "emptied": _cut(0),
    "cut to half": _cut(0.5),
    "cut by a little": lambda path: path.write_bytes(path.read_bytes()[:-1]),
    "grown": lambda path: path.write_bytes(path.read_bytes() + b"\n"),
    **{f"flipped at {share}": _flip(share, mask) for share, mask in ((0, 1), (0.2, 2), (0.5, 4), (0.8, 64), (1, 128))},
    "zeroed": lambda path: path.write_bytes(bytes(len(path.read_bytes()))),
    "deleted": Path.unlink,
    "renamed": lambda path: path.rename(path.with_name(f"other-{path.name}")),
    "a link": _link,
    "a folder": _become(Path.mkdir),
    "a pipe": _become(os.mkfifo),
}
BESIDE: dict[str, Spoil] = {
    "a file": lambda path: path.with_name(path.name + ".orig").write_text(""),
    "a hidden file": lambda path: path.with_name(f".{path.name}").write_text(""),
    "a folder": lambda path: path.with_name(f"{path.stem}-more").mkdir(),
    "a link": lambda path: path.with_name(f"{path.stem}-more").symlink_to(path),
}
"""What may appear beside a file."""


def files(bundle: Path) -> list[str]:
    """The paths of all files of a bundle."""
    return sorted(path.relative_to(bundle).as_posix() for path in bundle.rglob("*") if path.is_file())


def spoilt(sound: Path, bundle: Path, name: str, spoil: Spoil) -> Path:
    """A fresh copy of `sound` at `bundle` whose file `name` is spoilt."""
    shutil.rmtree(bundle.parent, ignore_errors=True)
    shutil.copytree(sound, bundle)
    (bundle / name).chmod(0o644)
    spoil(bundle / name)
    return bundle


def field_mutations(manifest: dict[str, Any]) -> Iterator[tuple[str, Place, dict[str, Any]]]:
    """What was done, where, and the manifest that results: each differs from `manifest` in a single place."""
    for place in _places(manifest):
        value = _at(manifest, place)
        for what, wanted in _instead(value).items():
            if json.dumps(wanted) != json.dumps(value):
                yield what, place, _with(manifest, place, lambda _, wanted=wanted: wanted)
        if place:
            yield "dropped", place, _with(manifest, place[:-1], lambda parent, key=place[-1]: _without(parent, key))


def _places(value: Any, place: Place = ()) -> Iterator[Place]:
    yield place
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in items:
        yield from _places(item, (*place, key))


def _instead(value: Any) -> dict[str, Any]:
    """Other values of the same type, so that only digests can tell, and values of every other type."""
    others: dict[str, Any] = {
        "null": None,
        "false": False,
        "a number": -1,
        "a large number": 2**70,
        "a fraction": 0.5,
        "a text": "x",
        "no text": "",
        "a list": [[]],
        "an object": {"x": 1},
    }
    if isinstance(value, dict):
        return others | {"a sibling": value | {"more": 1}, "emptied": {}}
    if isinstance(value, list):
        return others | {"longer": [*value, *(value[-1:] or [1])], "reversed": value[::-1], "emptied": []}
    if isinstance(value, bool):
        return others | {"changed": not value}
    if isinstance(value, int | float):
        return others | {"changed": value + 1, "spelt otherwise": float(value)}
    if isinstance(value, str):
        first = "1" if value.startswith("0") else "0"
        return others | {"changed": first + value[1:], "longer": value + " ", "upper": value.upper()}
    return others


def _at(value: Any, place: Place) -> Any:
    for key in place:
        value = value[key]
    return value


def _with(value: Any, place: Place, change: Callable[[Any], Any]) -> Any:
    if not place:
        return change(value)
    copy = value.copy()
    copy[place[0]] = _with(value[place[0]], place[1:], change)
    return copy


def _without(parent: Any, key: str | int) -> Any:
    if isinstance(parent, dict):
        return {name: item for name, item in parent.items() if name != key}
    return [item for i, item in enumerate(parent) if i != key]
