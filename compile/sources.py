"""The sources that decide a bundle's bytes: Tandem's own files, all but those that are known not to.

Reads the runtime's files and imports none of them: the examination that fills proof, oracle and prices is theirs.
"""

from __future__ import annotations

from collections.abc import Iterator
from fnmatch import fnmatch
from pathlib import Path

import tandem
from tandem.artifacts.digest import sha256_file

ROOT = Path(tandem.__file__).resolve().parent
ROOMS = ("artifacts", "compile", "kernels", "runtime")

INERT = {
    "artifacts/cli.py": "a command line over sealed bundles",
    "artifacts/commands/*": "the same",
    "artifacts/fit.py": "judges machines",
    "artifacts/report.py": "words about sealed bundles",
    "compile/cli.py": "what it asks for is in the resolved configuration",
    "runtime/checks/cli.py": "a command line over sealed bundles",
    "runtime/cli.py": "the same",
    "runtime/delivery.py": "serves",
    "runtime/http/*": "serves",
    "runtime/loading.py": "opens sealed bundles",
    "runtime/serve.py": "serves",
    "runtime/service.py": "serves",
    "runtime/terminal.py": "serves",
    "runtime/text.py": "serves",
    "runtime/worker.py": "serves",
    "tandem/command.py": "exit codes and error lines",
}
"""Files that no build reads, each with the reason. A file that nobody has thought about counts."""


def source_digests() -> dict[str, str]:
    """sha256 of every file that counts, by its path inside the package (`compile/plan.py`, `tandem/keys.py`)."""
    return {name: sha256_file(path) for name, path in sorted(_files()) if not is_inert(name)}


def is_inert(name: str) -> bool:
    """Whether the file of this name is listed as one that decides nothing."""
    return any(fnmatch(name, pattern) for pattern in INERT)


def _files() -> Iterator[tuple[str, Path]]:
    yield from (("tandem/" + path.name, path) for path in ROOT.iterdir() if path.is_file())
    for room in ROOMS:
        folder = ROOT / room
        for path in folder.rglob("*"):
            inside = path.relative_to(folder)
            # What Python and editors leave beside a source is none.
            hidden = any(part.startswith((".", "__pycache__")) for part in inside.parts)
            if path.is_file() and not hidden and not path.name.endswith((".pyc", "~")):
                yield f"{room}/{inside.as_posix()}", path
