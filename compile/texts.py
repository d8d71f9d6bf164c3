"""Documents of text out of files and folders, piece by piece: each plain file, and each line of a .jsonl, is one.

The same files give the same documents in the same order. Knows nothing of tokens.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from io import TextIOWrapper
from pathlib import Path

from tandem.errors import UsageError

KINDS = (".txt", ".md", ".py", ".jsonl")
"""What is taken of a folder; a file that is named itself may be called anything."""
PIECE = 1 << 18
"""Characters that a document is tokenized by, up to the end of a line: long ones never lie in memory whole."""


@dataclass(frozen=True, slots=True)
class Piece:
    """A part of a document; `last` ends it. `read` is how many bytes of files were read for it."""

    text: str
    last: bool
    read: int


def gather(paths: Sequence[Path]) -> list[Path]:
    """The files among `paths` and those of KINDS below its folders, by name, hidden ones and links left out.

    UsageError for what is not there, and for a folder without any.
    """
    found: list[Path] = []
    for path in paths:
        if path.is_dir():
            below = [Path(at, name) for at, folders, names in os.walk(path) for name in _seen(folders, names)]
            inside = sorted(file for file in below if file.suffix in KINDS and file.is_file() and not file.is_symlink())
            if not inside:
                raise UsageError(f"{path}: no file of the kinds {', '.join(KINDS)} in it; name files themselves")
            found += inside
        elif path.is_file():
            found.append(path)
        else:
            raise UsageError(f"{path}: no such file or folder")
    return list(dict.fromkeys(found))


def _seen(folders: list[str], names: list[str]) -> list[str]:
    folders[:] = [name for name in folders if not name.startswith(".")]
    return [name for name in names if not name.startswith(".")]


def pieces(paths: Iterable[Path]) -> Iterator[Piece]:
    """The documents of files, in order. UsageError that names file and line for what is no UTF-8 text."""
    for path in paths:
        with open(path, encoding="utf-8-sig", newline="") as file:
            try:
                yield from _lines(path, file) if path.suffix == ".jsonl" else _whole(file)
            except UnicodeDecodeError as error:
                raise UsageError(f"{path}: not UTF-8 text ({error.reason}); convert it or leave it out") from None


def _whole(file: TextIOWrapper) -> Iterator[Piece]:
    text = file.read(PIECE)
    while text:
        text += file.readline(PIECE)
        following = file.read(PIECE)
        yield Piece(text, not following, len(text.encode()))
        text = following


def _lines(path: Path, file: TextIOWrapper) -> Iterator[Piece]:
    for number, line in enumerate(file, 1):
        if not line.strip():
            continue
        try:
            text = json.loads(line)["text"]
            text.encode()
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            wanted = 'a JSON object with a "text" that is text'
            raise UsageError(f"{path}: line {number} is not {wanted}; mend it or leave it out") from None
        size = len(line.encode())
        for start in range(0, max(1, len(text)), PIECE):
            yield Piece(text[start : start + PIECE], start + PIECE >= len(text), size if start == 0 else 0)
