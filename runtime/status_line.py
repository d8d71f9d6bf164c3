"""The last row of a terminal, held for a line of figures while an answer runs through the rows above it.

Knows nothing of answers or figures.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TextIO

LEAST_ROWS = 4

# VT100 and all that came after it. Restoring the cursor restores a line that is full to its end, too.
SAVE, RESTORE, CLEAR, DIM, PLAIN = "\x1b7", "\x1b8", "\x1b[2K", "\x1b[2m", "\x1b[m"
FREE_A_ROW = "\x1bD\x1b[A"
SCROLL_ALL = "\x1b[r"


class StatusLine:
    """On `stream`, a terminal. Nothing is written before the first `show`."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._rows = 0

    def show(self, text: str) -> None:
        """Put `text` there, cut to the width; the cursor stays where it is."""
        columns, rows = os.get_terminal_size(self._stream.fileno())
        if rows < LEAST_ROWS:
            return
        if rows != self._rows:  # the first time, and after a change of size, which terminals scroll as a whole again
            self._write(f"{FREE_A_ROW}{SAVE}\x1b[1;{rows - 1}r{RESTORE}")
            self._rows = rows
        self._write(f"{SAVE}\x1b[{rows};1H{CLEAR}{DIM}{text[: columns - 1]}{PLAIN}{RESTORE}")

    def close(self) -> None:
        if self._rows:
            self._write(f"{SAVE}\x1b[{self._rows};1H{CLEAR}{SCROLL_ALL}{RESTORE}")
            self._rows = 0

    def _write(self, text: str) -> None:
        self._stream.write(text)
        self._stream.flush()


@contextmanager
def status_line() -> Iterator[StatusLine | None]:
    """One on stderr for as long as the block lasts; None unless stdout and stderr are the same able terminal."""
    if not _one_terminal():
        yield None
        return
    line = StatusLine(sys.stderr)
    try:
        yield line
    finally:
        line.close()


def _one_terminal() -> bool:
    if os.environ.get("TERM", "dumb") == "dumb":
        return False
    try:
        return os.ttyname(sys.stdout.fileno()) == os.ttyname(sys.stderr.fileno())
    except (OSError, ValueError):  # no terminal, or no file at all
        return False
