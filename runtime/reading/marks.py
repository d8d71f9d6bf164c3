"""Markers found in text that comes in pieces, wherever the pieces part.

Knows nothing of what markers mean.
"""

from __future__ import annotations

import re
from collections.abc import Sequence


class Marks:
    """Splits a text at the first of `markers`; the tail that may begin one waits inside."""

    def __init__(self, markers: Sequence[str]) -> None:
        self._markers = tuple(markers)
        self._pattern = re.compile("|".join(map(re.escape, markers)))
        self._longest = max(map(len, markers))
        self._held = ""

    def find(self, text: str, pos: int) -> tuple[str, str | None, int]:
        """(plain text before it, the marker or None, where the text goes on) from `pos` on.

        Without a marker all of `text` is taken, and what waited may come with the plain text.
        """
        held, self._held = self._held, ""
        if held:
            joined, start = held + text[pos:], 0
        else:
            joined, start = text, pos
        if match := self._pattern.search(joined, start):
            return joined[start : match.start()], match.group(), len(text) - (len(joined) - match.end())
        certain = len(joined) - self._begun(joined, start)
        self._held = joined[certain:]
        return joined[start:certain], None, len(text)

    def flush(self) -> str:
        """What waits, once no more text comes."""
        held, self._held = self._held, ""
        return held

    def _begun(self, text: str, start: int) -> int:
        """How many characters at the end of `text` from `start` on are the beginning of a marker."""
        for length in range(min(self._longest - 1, len(text) - start), 0, -1):
            tail = text[-length:]
            if any(marker.startswith(tail) for marker in self._markers):
                return length
        return 0


class Fork:
    """Takes spaces and then one of `markers`, or nothing: for places where a marker may stand and need not."""

    def __init__(self, markers: Sequence[str], spaces: str = r"\s") -> None:
        """`spaces` is the regular expression of one."""
        self._markers, self._spaces = tuple(markers), re.compile(f"(?:{spaces})*")
        self._space: list[str] = []
        self._held = ""

    @property
    def taken(self) -> str:
        """All that was read, the marker left out."""
        return "".join(self._space)

    def read(self, text: str, pos: int) -> tuple[str | None, int, bool]:
        """(the marker or None, where the text goes on, whether it is decided).

        Decided without a marker, `taken` and then the text from there on are something else; it may end in what was
        the beginning of a marker, which `taken` holds.
        """
        if not self._held and (space := self._spaces.match(text, pos)):
            self._space.append(space.group())
            pos = space.end()
        while pos < len(text):
            begun = self._held + text[pos]
            pos += 1
            if begun in self._markers:
                return begun, pos, True
            if not any(marker.startswith(begun) for marker in self._markers):
                self._space.append(self._held)
                return None, pos - 1, True
            self._held = begun
        return None, pos, False

    def flush(self) -> str:
        """All that was read, once no more text comes."""
        return self.taken + self._held
