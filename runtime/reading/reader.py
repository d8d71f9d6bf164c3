"""One answer's text read as it comes: thoughts first, then content and calls. Knows nothing of HTTP or engines.

The parts depend on the text alone, never on how it was cut into pieces; what is no call in good form is content.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable
from dataclasses import replace
from itertools import groupby

from tandem.runtime.reading.marks import Marks
from tandem.runtime.reading.parts import (
    CallArguments,
    CallOpened,
    CallReader,
    Content,
    Opened,
    Part,
    Piece,
    Reasoning,
    Sign,
)
from tandem.runtime.reading.thoughts import Thoughts


def call_id() -> str:
    return f"call_{uuid.uuid4().hex[:24]}"


class Reader:
    """`push` and `end` give parts, no two of a kind in a row. `only_first`: nothing counts behind the first call.

    Spaces around calls are no content, unless content follows; `unseen` are markers that content never shows.
    """

    def __init__(
        self,
        thoughts: Thoughts | None,
        calls: CallReader | None,
        *,
        only_first: bool = False,
        unseen: tuple[str, ...] = (),
        new_id: Callable[[], str] = call_id,
    ) -> None:
        self.num_calls = 0
        self.finished = False
        self._thoughts, self._calls = thoughts, calls
        self._only_first, self._new_id = only_first, new_id
        self._unseen = Marks(unseen) if unseen else None
        self._space: list[str] = []
        self._after_call = False

    def push(self, text: str) -> list[Part]:
        """Parts that `text` makes certain."""
        thought, rest = self._thoughts.push(text) if self._thoughts else ("", text)
        return self._parts(thought, self._calls.push(rest) if self._calls else [Content(rest)])

    def end(self, *, cut: bool = False) -> list[Part]:
        """What is left. A call that is still open is closed to valid JSON, unless the text was `cut` short."""
        thought, rest = self._thoughts.end() if self._thoughts else ("", "")
        signs: list[Sign] = [Content(rest)]
        if self._calls:
            signs = [*self._calls.push(rest), *self._calls.end(cut=cut)]
        parts = self._parts(thought, signs)
        if self._unseen and not self.finished:
            self._content(self._unseen.flush(), parts)
        if self._space and not self._after_call:
            parts.append(Content("".join(self._space)))
        return _joined(parts)

    def _parts(self, thought: str, signs: list[Sign]) -> list[Part]:
        parts: list[Part] = [Reasoning(thought)] if thought else []
        for sign in signs:
            if self.finished:
                break
            if isinstance(sign, Content):
                self._content(self._seen(sign.text), parts)
            elif isinstance(sign, Opened):
                self._content(self._unseen.flush() if self._unseen else "", parts)
                self._space.clear()
                parts.append(CallOpened(self.num_calls, self._new_id(), sign.name))
                self.num_calls += 1
            elif isinstance(sign, Piece):
                parts.append(CallArguments(self.num_calls - 1, sign.text))
            else:
                self._after_call, self.finished = True, self._only_first
        return _joined(parts)

    def _seen(self, text: str) -> str:
        """`text` without the markers that content never shows."""
        seen, pos = list[str](), 0
        while self._unseen and pos < len(text):
            plain, _, pos = self._unseen.find(text, pos)
            seen.append(plain)
        return "".join(seen) if self._unseen else text

    def _content(self, text: str, parts: list[Part]) -> None:
        kept = text.rstrip() if self._calls else text
        if kept:
            parts.append(Content("".join(self._space) + kept))
            self._space.clear()
            self._after_call = False
        if kept != text:
            self._space.append(text[len(kept) :])


def _joined(parts: list[Part]) -> list[Part]:
    """`parts` with neighbours of a kind made one."""
    joined: list[Part] = []
    for _, group in groupby(parts, key=lambda part: (type(part), getattr(part, "index", 0))):
        first, *rest = group
        if isinstance(first, CallOpened):
            joined.append(first)
        else:
            texts = [first.text, *(part.text for part in rest if not isinstance(part, CallOpened))]
            joined.append(replace(first, text="".join(texts)))
    return joined
