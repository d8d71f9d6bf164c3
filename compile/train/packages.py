"""Where training text comes from: the standard library, installed packages, downloaded archives, plain folders.

Each is a package with a name, a version and a licence that allows the use. Knows nothing of tokens.
"""

from __future__ import annotations

import email
import platform
import re
import sysconfig
import tarfile
import zipfile
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from email.message import Message
from importlib.metadata import distributions
from pathlib import Path, PurePosixPath

from tandem.errors import UsageError

Files = Iterator[tuple[str, bytes]]

CODE, DOCS = ".py", (".rst", ".md", ".rst.txt")
MAX_FILE_BYTES = 120_000
PERMISSIVE = re.compile(
    r"\b(MIT|BSD|0BSD|Apache|ISC|Python Software Foundation|PSF|Unlicense|HPND|Zlib|Biopython)\b", re.IGNORECASE
)
REFUSED = re.compile(r"GPL|MPL|EPL|CDDL|EUPL|General Public|Mozilla|Proprietary|Commercial", re.IGNORECASE)
# Copies of other packages, whose licences are their own, and folders of data.
_SKIPPED_PARTS = {
    "_vendor", "_vendored", "vendor", "vendored", "third_party", "thirdparty", "extern", "externals", "site-packages",
    "__pycache__", "locale", "locales", "node_modules", "_distutils", "build", "dist", "lib2to3", "licenses",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Package:
    """A named, licensed set of files; `files` yields (path inside, content) sorted by path.

    `share` is how many times the usual share of the corpus it may take.
    """

    name: str
    version: str
    licence: str
    files: Callable[[], Files]
    share: int = 1


def licence_of(metadata: Message) -> str:
    """The licence a package's metadata names, shortly; empty where it is not one of the permissive licences."""
    expression = str(metadata.get("License-Expression") or "").strip()
    classified = [str(line) for line in metadata.get_all("Classifier") or [] if str(line).startswith("License")]
    words = [line.rsplit("::", 1)[-1].strip() for line in classified]
    stated = str(metadata.get("License") or "").strip().partition("\n")[0][:60]
    if any(REFUSED.search(text) for text in (expression, stated, *words)):
        return ""
    return next((text for text in (expression, *words, stated) if PERMISSIVE.search(text)), "")


def wanted(path: str) -> bool:
    """Whether a file is source or documentation of the package's own."""
    parts = PurePosixPath(path).parts
    known = path.endswith((CODE, *DOCS)) or (path.endswith(".txt") and "docs" in parts)
    return known and not _SKIPPED_PARTS.intersection(parts)


def standard_library() -> Package:
    """The library of the Python that runs this."""
    root = Path(sysconfig.get_paths()["stdlib"])
    return Package("python-library", platform.python_version(), "PSF-2.0", lambda: _walk(root), share=8)


def folder(name: str, version: str, licence: str, root: Path) -> Package:
    """A folder of files whose licence the caller knows. UsageError if it is not permissive or there is no folder."""
    if not PERMISSIVE.search(licence) or REFUSED.search(licence):
        raise UsageError(f"{name}: licence {licence!r} is not one of the permissive ones; leave it out")
    if not root.is_dir():
        raise UsageError(f"{root}: no such folder; unpack {name} there first")
    return Package(name, version, licence, lambda: _walk(root), share=8)


def installed(root: Path) -> Iterator[Package]:
    """Permissively licensed distributions installed in the site-packages folder `root`, by name."""
    for found in sorted(distributions(path=[str(root)]), key=lambda d: d.name.lower()):
        paths = sorted(str(path) for path in found.files or [] if wanted(str(path)))
        if (licence := licence_of(_message(found.read_text("METADATA") or ""))) and paths:
            yield Package(found.name, found.version, licence, lambda paths=paths: _read(root, paths))  # type: ignore[misc]


def archives(root: Path) -> Iterator[Package]:
    """Permissively licensed packages of the wheels and source archives in `root` and its folders, by file name."""
    for path in sorted(root.rglob("*"), key=lambda path: path.name.lower()):
        if path.suffix == ".whl":
            with zipfile.ZipFile(path) as wheel:
                names = [name for name in wheel.namelist() if re.fullmatch(r"[^/]+\.dist-info/METADATA", name)]
                metadata = _message(wheel.read(names[0]).decode() if names else "")
            yield from _packed(metadata, lambda path=path: _unzip(path))  # type: ignore[misc]
        elif path.name.endswith(".tar.gz"):
            yield from _packed(_source_metadata(path), lambda path=path: _untar(path))  # type: ignore[misc]


def _packed(metadata: Message, files: Callable[[], Files]) -> Iterator[Package]:
    if licence := licence_of(metadata):
        yield Package(str(metadata["Name"]), str(metadata["Version"]), licence, files)


def _message(text: str) -> Message:
    return email.message_from_string(text)


def _source_metadata(path: Path) -> Message:
    with tarfile.open(path) as archive:
        for member in archive:
            if re.fullmatch(r"[^/]+/PKG-INFO", member.name) and (stream := archive.extractfile(member)):
                return _message(stream.read().decode())
    return _message("")


def _walk(root: Path) -> Files:
    paths = (path.relative_to(root).as_posix() for path in root.rglob("*") if path.is_file())
    return _read(root, sorted(filter(wanted, paths)))


def _read(root: Path, paths: Iterable[str]) -> Files:
    for path in paths:
        if (root / path).is_file() and (root / path).stat().st_size <= MAX_FILE_BYTES:
            yield path, (root / path).read_bytes()


def _unzip(path: Path) -> Files:
    with zipfile.ZipFile(path) as wheel:
        for entry in sorted(wheel.infolist(), key=lambda entry: entry.filename):
            if wanted(entry.filename) and entry.file_size <= MAX_FILE_BYTES:
                yield entry.filename, wheel.read(entry)


def _untar(path: Path) -> Files:
    found: list[tuple[str, bytes]] = []
    with tarfile.open(path) as archive:
        for member in archive:
            name = member.name.partition("/")[2]
            small = member.isfile() and wanted(name) and member.size <= MAX_FILE_BYTES
            if small and (stream := archive.extractfile(member)):
                found.append((name, stream.read()))
    yield from sorted(found)
