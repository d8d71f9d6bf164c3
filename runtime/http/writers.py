"""What one choice of a reply says, from the events of its answer: one writer a choice, for a stream or a whole reply.

Knows nothing of engines, of other choices or of how replies travel.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from tandem.runtime.delivery import End, Event
from tandem.runtime.http.logprobs import ChatLogprobs, TextLogprobs, Wording
from tandem.runtime.http.replies import ChatChoice, ChatChunkChoice, ChatDelta, ChatMessage, Choice, TextChoice


class ChoiceWriter(Protocol):
    """Words one choice, once: in chunks event by event, or whole."""

    def opening(self) -> Choice | None:
        """A first chunk that says who speaks, before there is any event."""
        ...

    def piece(self, event: Event) -> Choice:
        """The chunk of an event; that of the last one has the finish reason."""
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
    """A choice of /v1/chat/completions. `told` says whether logprobs are asked for."""

    def __init__(self, index: int, wording: Wording, *, told: bool) -> None:
        self._index, self._wording, self._told = index, wording, told

    def opening(self) -> Choice | None:
        return ChatChunkChoice(ChatDelta("assistant", ""), self._index)

    def piece(self, event: Event) -> ChatChunkChoice:
        delta = ChatDelta(content=event.text or None)
        return ChatChunkChoice(delta, self._index, finish_reason(event), self._logprobs(event))

    def whole(self, end: End) -> ChatChoice:
        return ChatChoice(ChatMessage(end.text), self._index, end.reason.value, self._logprobs(end))

    def _logprobs(self, event: Event) -> ChatLogprobs | None:
        return self._wording.chat(event.logprobs) if self._told else None


def finish_reason(event: Event) -> str | None:
    return event.reason.value if isinstance(event, End) else None
