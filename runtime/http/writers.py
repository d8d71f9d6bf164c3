"""What one choice of a reply says, from the events of its answer: one writer a choice, for a stream or a whole reply.

Knows nothing of engines, of other choices or of how replies travel.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from msgspec import UNSET, UnsetType

from tandem.runtime.delivery import End, Event
from tandem.runtime.http.logprobs import ChatLogprobs, PromptLogprobs, TextLogprobs, Wording
from tandem.runtime.http.parts import delta_of, message_of
from tandem.runtime.http.replies import ChatChoice, ChatChunkChoice, ChatDelta, Choice, TextChoice
from tandem.runtime.logprobs import TokenLogprob
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

    def beside(self, end: End) -> PromptLogprobs | UnsetType:
        """What stands beside the choices of a whole reply, of the first of which this is the writer."""
        ...


WriterMaker = Callable[[int, Wording], ChoiceWriter]
"""Makes the writer of the choice with an index, whose logprobs a wording of its own words."""


@dataclass(frozen=True, slots=True)
class Told:
    """What is told beside an answer's text: how many alternatives to each token and to each of the prompt's.

    None: no logprobs at all.
    """

    logprobs: int | None = None
    prompt_logprobs: int | None = None


@dataclass(frozen=True, slots=True)
class Echo:
    """A prompt that is told before the answer: its text, and its first id."""

    text: str
    first: int


class CompletionWriter:
    """A choice of /v1/completions, which begins with its prompt where there is an `echo`."""

    def __init__(self, index: int, wording: Wording, told: Told, echo: Echo | None = None) -> None:
        self._index, self._wording, self._told, self._echo = index, wording, told, echo

    def opening(self) -> Choice | None:
        return None

    def piece(self, event: Event) -> TextChoice:
        echo, self._echo = self._echo, None  # the first one tells it
        text = event.text if echo is None else echo.text + event.text
        return TextChoice(text, self._index, finish_reason(event), self._logprobs(event, echo))

    def whole(self, end: End) -> TextChoice:
        choice = self.piece(end)
        choice.prompt_logprobs = _of_prompt(self._wording, end, self._told)
        return choice

    def beside(self, end: End) -> PromptLogprobs | UnsetType:
        return UNSET

    def _logprobs(self, event: Event, echo: Echo | None) -> TextLogprobs | None:
        count = self._told.logprobs
        if count is None:
            return None
        if echo is None:
            return self._wording.text(event.logprobs)
        return self._wording.text([*_cut(event.prompt, count), *event.logprobs], echo.first)


class ChatWriter:
    """A choice of /v1/chat/completions.

    `reading` is how the text is read, None: as it is; a model ends it by one of `stop_ids`.
    """

    def __init__(
        self,
        index: int,
        wording: Wording,
        told: Told,
        *,
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
        if not parts and self._told.logprobs is None and not isinstance(event, End):
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

    def beside(self, end: End) -> PromptLogprobs | UnsetType:
        return _of_prompt(self._wording, end, self._told)

    def _logprobs(self, event: Event) -> ChatLogprobs | None:
        return None if self._told.logprobs is None else self._wording.chat(event.logprobs)


def _of_prompt(wording: Wording, end: End, told: Told) -> PromptLogprobs | UnsetType:
    return UNSET if told.prompt_logprobs is None else wording.prompt(_cut(end.prompt, told.prompt_logprobs))


def _cut(tokens: Sequence[TokenLogprob], count: int) -> list[TokenLogprob]:
    """`tokens` with `count` alternatives each: more may have been measured for another list of the same prompt."""
    return [replace(token, top=token.top[:count]) for token in tokens]


def finish_reason(event: Event) -> str | None:
    return event.reason.value if isinstance(event, End) else None
