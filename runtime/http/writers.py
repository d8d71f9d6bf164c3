"""What one choice of a reply says, from the events of its answer: one writer a choice, for a stream or a whole reply.

Knows nothing of engines, of other choices or of how replies travel.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Protocol

from tandem.runtime.delivery import End, Event
from tandem.runtime.http.logprobs import ChatLogprobs, TextLogprobs, Wording
from tandem.runtime.http.parts import delta_of, message_of
from tandem.runtime.http.replies import ChatChoice, ChatChunkChoice, ChatDelta, Choice, TextChoice
from tandem.runtime.reading.formats import Reading
from tandem.runtime.reading.parts import Content, Part
from tandem.runtime.request import FinishReason

TOOL_CALLS = "tool_calls"
"""The finish reason of an answer that ended by itself and holds calls."""


class ChoiceWriter(Protocol):
    """Words one choice, once: in chunks event by event, or whole."""

    def opening(self) -> Choice | None:
        """A first chunk that says who speaks, before there is any event."""
        ...

    def piece(self, event: Event) -> Choice | None:
        """The chunk of an event, None where it says nothing yet; that of the last one has the finish reason."""
        ...

    def whole(self, end: End) -> Choice:
        """The choice of an answer that was joined to one event."""
        ...


WriterMaker = Callable[[int, Wording], ChoiceWriter]
"""Makes the writer of the choice with an index, whose logprobs a wording of its own words."""


class CompletionWriter:
    """A choice of /v1/completions. `told` says whether logprobs are asked for."""

    def __init__(self, index: int, wording: Wording, *, told: bool) -> None:
        self._index, self._wording, self._told = index, wording, told

    def opening(self) -> Choice | None:
        return None

    def piece(self, event: Event) -> TextChoice:
        return TextChoice(event.text, self._index, finish_reason(event), self._logprobs(event))

    def whole(self, end: End) -> TextChoice:
        return self.piece(end)

    def _logprobs(self, event: Event) -> TextLogprobs | None:
        return self._wording.text(event.logprobs) if self._told else None


class ChatWriter:
    """A choice of /v1/chat/completions. `told` says whether logprobs are asked for.

    `reading` is how the text is read, None: as it is; a model ends it by one of `stop_ids`.
    """

    def __init__(
        self,
        index: int,
        wording: Wording,
        *,
        told: bool,
        reading: Reading | None = None,
        stop_ids: Collection[int] = (),
    ) -> None:
        self._index, self._wording, self._told = index, wording, told
        self._reader = None if reading is None else reading.reader()
        self._stop_ids = stop_ids

    def opening(self) -> Choice | None:
        return ChatChunkChoice(ChatDelta("assistant", ""), self._index)

    def piece(self, event: Event) -> ChatChunkChoice | None:
        parts = self._parts(event)
        if not parts and not self._told and not isinstance(event, End):
            return None
        return ChatChunkChoice(delta_of(parts), self._index, self._finish_reason(event), self._logprobs(event))

    def whole(self, end: End) -> ChatChoice:
        message, reason = message_of(self._parts(end)), self._finish_reason(end) or ""
        return ChatChoice(message, self._index, reason, self._logprobs(end))

    def _parts(self, event: Event) -> list[Part]:
        if self._reader is None:
            return [Content(event.text)] if event.text else []
        parts = self._reader.push(event.text)
        if isinstance(event, End):
            parts += self._reader.end(cut=not event.ids or event.ids[-1] not in self._stop_ids)
        return parts

    def _finish_reason(self, event: Event) -> str | None:
        if self._reader and self._reader.num_calls and isinstance(event, End) and event.reason is FinishReason.STOP:
            return TOOL_CALLS
        return finish_reason(event)

    def _logprobs(self, event: Event) -> ChatLogprobs | None:
        return self._wording.chat(event.logprobs) if self._told else None


def finish_reason(event: Event) -> str | None:
    return event.reason.value if isinstance(event, End) else None
