"""The sources that decide a bundle's bytes: Tandem's own files, all but those that are known not to.

Reads the runtime's files and imports none of them: the examination that fills proof, oracle and prices is theirs.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from fnmatch import fnmatch
from pathlib import Path

import tandem
from tandem.artifacts.digest import sha256_file

ROOT = Path(tandem.__file__).resolve().parent
ROOMS = ("artifacts", "compile", "kernels", "runtime")

INERT: dict[str, tuple[str, ...]] = {
    "what these commands ask for is in the resolved configuration": ("compile/cli.py", "tandem/command.py"),
    "looks at sealed bundles": (
        *("artifacts/cli.py", "artifacts/commands/*", "artifacts/diff/*", "artifacts/fit.py", "artifacts/reader.py"),
        *("artifacts/report.py", "compile/onnx/*", "compile/models/reference.py"),
        *("runtime/checks/cali*.py", "runtime/checks/cli.py", "runtime/checks/design.py", "runtime/checks/forced.py"),
        *("runtime/checks/identity.py", "runtime/checks/oracle.py", "runtime/checks/probe.py"),
        "runtime/checks/prompts.py",
        *("runtime/checks/selfcheck.py", "runtime/checks/spec*.py", "runtime/checks/tables.py"),
        *("runtime/checks/watch.py",),
    ),
    "ships sealed bundles": ("artifacts/shipping/*", "artifacts/signing.py"),
    "serves sealed bundles": (
        *("runtime/chat.py", "runtime/cli.py", "runtime/delivery.py", "runtime/drafters/*", "runtime/engine.py"),
        *("runtime/http/*", "runtime/lane.py", "runtime/loading.py", "runtime/pages.py", "runtime/prefill.py"),
        *("runtime/acceptance.py", "runtime/draws.py", "runtime/round.py", "runtime/router/*", "runtime/serve.py"),
        *("runtime/service.py", "runtime/slots.py", "runtime/steps.py", "runtime/terminal.py", "runtime/text.py"),
        "runtime/worker.py",
    ),
}
"""Files that no build reads, by reason. A file that nobody has thought about counts."""


def source_digests(foreign: Iterable[str] = ()) -> dict[str, str]:
    """sha256 of every file that counts, by its path inside the package (`compile/plan.py`, `tandem/keys.py`).

    `foreign` are patterns of files that decide nothing for the device at hand.
    """
    names = {name: path for name, path in sorted(_files()) if not is_inert(name) and not matches(name, foreign)}
    return {name: sha256_file(path) for name, path in names.items()}


def is_inert(name: str) -> bool:
    """Whether the file of this name is listed as one that decides nothing."""
    return any(matches(name, patterns) for patterns in INERT.values())


def matches(name: str, patterns: Iterable[str]) -> bool:
    """Whether a file's name is like one of these."""
    return any(fnmatch(name, pattern) for pattern in patterns)


def _files() -> Iterator[tuple[str, Path]]:
    """Each room by its own name, since walking a folder does not follow the links that a checkout has there."""
    yield from (
        (f"tandem/{path.name}", path) for path in ROOT.iterdir() if path.is_file() and _is_source(Path(path.name))
    )
    for room in ROOMS:
        for path in (ROOT / room).rglob("*"):
            inside = path.relative_to(ROOT / room)
            if path.is_file() and _is_source(inside):
                yield f"{room}/{inside.as_posix()}", path


def _is_source(path: Path) -> bool:
    """Not what Python and editors leave beside one."""
    hidden = any(part.startswith((".", "__pycache__")) for part in path.parts)
    return not hidden and not path.name.endswith((".pyc", "~"))
