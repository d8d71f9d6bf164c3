"""What one choice of a reply says, from the events of its answer: one writer a choice, for a stream or a whole reply.

Knows nothing of engines, of other choices or of how replies travel.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from msgspec import UNSET, UnsetType

from tandem.runtime.delivery import End, Event
from tandem.runtime.http.logprobs import ChatLogprobs, PromptLogprobs, TextLogprobs, Wording
from tandem.runtime.http.replies import ChatChoice, ChatChunkChoice, ChatDelta, ChatMessage, Choice, TextChoice
from tandem.runtime.logprobs import TokenLogprob


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
    """A choice of /v1/chat/completions."""

    def __init__(self, index: int, wording: Wording, told: Told) -> None:
        self._index, self._wording, self._told = index, wording, told

    def opening(self) -> Choice | None:
        return ChatChunkChoice(ChatDelta("assistant", ""), self._index)

    def piece(self, event: Event) -> ChatChunkChoice:
        delta = ChatDelta(content=event.text or None)
        return ChatChunkChoice(delta, self._index, finish_reason(event), self._logprobs(event))

    def whole(self, end: End) -> ChatChoice:
        return ChatChoice(ChatMessage(end.text), self._index, end.reason.value, self._logprobs(end))

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
