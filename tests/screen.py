"""A terminal's screen for tests: what one sees after the bytes a program wrote. Knows the few VT100 words in use here.

Anything else raises, so that a test finds out.
"""

from __future__ import annotations

import re

CONTROL = re.compile(r"\x1b(?:\[(\??[\d;]*)([A-Za-z])|([78DM]))")
IGNORED = {"m", "h", "l"}  # colours and modes


class Screen:
    def __init__(self, rows: int, columns: int) -> None:
        self.rows, self.columns = rows, columns
        self.cells = [[" "] * columns for _ in range(rows)]
        self.gone: list[str] = []  # lines that scrolled off the top
        self._row = self._column = 0
        self._full = False  # the last column is written and the next character starts a line
        self._saved = (0, 0, False)
        self._top, self._bottom = 0, rows - 1

    @property
    def lines(self) -> list[str]:
        return ["".join(cells).rstrip() for cells in self.cells]

    @property
    def is_whole(self) -> bool:
        """Whether all rows scroll."""
        return (self._top, self._bottom) == (0, self.rows - 1)

    def feed(self, text: str) -> None:
        """`text` must not end within a control sequence."""
        while text:
            if text[0] == "\x1b":
                found = CONTROL.match(text)
                assert found, f"unknown: {text[:10]!r}"
                self._control(found[1] or "", found[2] or found[3])
                text = text[found.end() :]
                continue
            self._character(text[0])
            text = text[1:]

    def _character(self, character: str) -> None:
        if character == "\r":
            self._column, self._full = 0, False
        elif character == "\n":
            self._down()
        else:
            assert character.isprintable(), f"unknown: {character!r}"
            if self._full:
                self._down()
                self._column = 0
            self.cells[self._row][self._column] = character
            self._full = self._column == self.columns - 1
            self._column += not self._full

    def _control(self, numbers: str, word: str) -> None:
        first, second = ([int(n) if n else 0 for n in numbers.lstrip("?").split(";")] + [0])[:2]
        match word:
            case "7":
                self._saved = (self._row, self._column, self._full)
            case "8":
                self._row, self._column, self._full = self._saved
            case "D":
                self._down()
            case "A":
                self._row, self._full = max(0, self._row - max(1, first)), False
            case "H":
                self._row, self._column, self._full = max(0, first - 1), max(0, second - 1), False
            case "K":
                assert first == 2
                self.cells[self._row] = [" "] * self.columns
            case "r":
                self._top, self._bottom = max(0, first - 1), (second or self.rows) - 1
                self._row = self._column = 0
                self._full = False
            case _:
                assert word in IGNORED, f"unknown: {word}"

    def _down(self) -> None:
        self._full = False
        if self._row != self._bottom:
            self._row = min(self._row + 1, self.rows - 1)
            return
        line = self.cells.pop(self._top)
        if self._top == 0:
            self.gone.append("".join(line).rstrip())
        self.cells.insert(self._bottom, [" "] * self.columns)
