"""The block of thoughts that an answer may begin with, `<think>` to `</think>`, parted from the answer.

Line ends beside the tags belong to them, as chat templates write them. Knows nothing of calls.
"""

from __future__ import annotations

from tandem.runtime.reading.marks import Fork, Marks

BEGIN, END = "<think>", "</think>"


class Thoughts:
    """Splits text into (thoughts, answer). `is_open`: the prompt ends inside the block, which the text then goes on."""

    def __init__(self, *, is_open: bool) -> None:
        self._is_open = is_open
        self._begin: Fork | None = Fork((BEGIN,))
        self._end: Marks | None = Marks((END,))
        self._space = list[str]()  # line ends that may stand before the end's tag
        self._is_fresh = True  # just behind a tag, where line ends are dropped

    def push(self, text: str) -> tuple[str, str]:
        pos, thought = 0, ""
        if self._begin is not None:
            marker, pos, decided = self._begin.read(text, 0)
            if not decided:
                return "", ""
            text = ("" if marker else self._begin.taken) + text[pos:]
            self._begin = None
            if marker is None and not self._is_open:
                self._end, self._is_fresh = None, False
        if self._end is not None:
            thought, marker, pos = self._end.find(text, 0)
            thought = self._without_edges(thought)
            if marker is None:
                return thought, ""
            self._end, self._is_fresh, text, self._space = None, True, text[pos:], []
        if self._is_fresh:
            text = text.lstrip("\n")
            self._is_fresh = not text
        return thought, text

    def end(self) -> tuple[str, str]:
        """What is left, once no more text comes."""
        if self._begin is not None:
            left = self._begin.flush()
            return (left, "") if self._is_open else ("", left)
        if self._end is not None:
            return self._without_edges(self._end.flush()) + "".join(self._space), ""
        return "", ""

    def _without_edges(self, text: str) -> str:
        """`text` and the line ends held, without those at the block's start; those at its end are held."""
        if self._is_fresh:
            text = text.lstrip("\n")
            self._is_fresh = not text
        kept = text.rstrip("\n")
        if not kept:
            self._space.append(text)
            return ""
        space, self._space = "".join(self._space), [text[len(kept) :]]
        return space + kept
