"""Bodies of answers: completions and chat completions, whole and in chunks, and the list of models.

Knows only shapes; where text and counts come from is another file's matter.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Sequence
from typing import Protocol

from msgspec import UNSET, Struct, UnsetType

from tandem.runtime.http.logprobs import ChatLogprobs, TextLogprobs, Wording
from tandem.runtime.logprobs import TokenLogprob
from tandem.runtime.service import Service

Tokens = Sequence[TokenLogprob] | None
"""Logprobs of what a reply brings; None where they are not asked for."""


class CompletionDetails(Struct):
    reasoning_tokens: int


class Usage(Struct):
    """`completion_tokens_details` is left out for models that do not think."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    completion_tokens_details: CompletionDetails | UnsetType = UNSET


class TextChoice(Struct):
    text: str
    finish_reason: str | None = None
    index: int = 0
    logprobs: TextLogprobs | None = None


class ChatMessage(Struct):
    content: str
    role: str = "assistant"
    refusal: None = None


class ChatChoice(Struct):
    message: ChatMessage
    finish_reason: str
    index: int = 0
    logprobs: ChatLogprobs | None = None


class ChatDelta(Struct, omit_defaults=True):
    role: str | None = None
    content: str | None = None


class ChatChunkChoice(Struct):
    delta: ChatDelta
    finish_reason: str | None = None
    index: int = 0
    logprobs: ChatLogprobs | None = None


Choice = TextChoice | ChatChoice | ChatChunkChoice


class Reply(Struct):
    """A whole answer or one chunk of it; `usage` is left out unless asked for."""

    id: str
    object: str
    created: int
    model: str
    system_fingerprint: str
    choices: list[Choice]
    usage: Usage | UnsetType | None = UNSET


class Shape(Protocol):
    """How an endpoint words its answers."""

    prefix: str
    whole_object: str
    chunk_object: str

    def whole(self, text: str, finish_reason: str, tokens: Tokens) -> Choice: ...

    def opening(self) -> Choice | None:
        """The choice of a first chunk that says who speaks."""
        ...

    def piece(self, text: str, finish_reason: str | None, tokens: Tokens) -> Choice: ...


class CompletionShape:
    prefix, whole_object, chunk_object = "cmpl", "text_completion", "text_completion"

    def __init__(self, wording: Wording) -> None:
        self._wording = wording

    def whole(self, text: str, finish_reason: str, tokens: Tokens) -> Choice:
        return self.piece(text, finish_reason, tokens)

    def opening(self) -> Choice | None:
        return None

    def piece(self, text: str, finish_reason: str | None, tokens: Tokens) -> Choice:
        return TextChoice(text, finish_reason, logprobs=None if tokens is None else self._wording.text(tokens))


class ChatShape:
    prefix, whole_object, chunk_object = "chatcmpl", "chat.completion", "chat.completion.chunk"

    def __init__(self, wording: Wording) -> None:
        self._wording = wording

    def whole(self, text: str, finish_reason: str, tokens: Tokens) -> Choice:
        return ChatChoice(ChatMessage(text), finish_reason, logprobs=self._worded(tokens))

    def opening(self) -> Choice | None:
        return ChatChunkChoice(ChatDelta("assistant", ""))

    def piece(self, text: str, finish_reason: str | None, tokens: Tokens) -> Choice:
        return ChatChunkChoice(ChatDelta(content=text or None), finish_reason, logprobs=self._worded(tokens))

    def _worded(self, tokens: Tokens) -> ChatLogprobs | None:
        return None if tokens is None else self._wording.chat(tokens)


class Letterhead:
    """What all replies to one request share: id, time, model and fingerprint."""

    def __init__(self, service: Service, shape: Shape) -> None:
        self._id = f"{shape.prefix}-{uuid.uuid4().hex}"
        self._created = int(time.time())
        self._service, self._shape = service, shape

    def whole(self, text: str, finish_reason: str, tokens: Tokens, usage: Usage) -> Reply:
        return self._reply(self._shape.whole_object, [self._shape.whole(text, finish_reason, tokens)], usage)

    def chunk(self, choice: Choice | None, usage: Usage | UnsetType | None) -> Reply:
        return self._reply(self._shape.chunk_object, [] if choice is None else [choice], usage)

    def _reply(self, name: str, choices: list[Choice], usage: Usage | UnsetType | None) -> Reply:
        model, fingerprint = self._service.model, self._service.fingerprint
        return Reply(self._id, name, self._created, model, fingerprint, choices, usage)


class Model(Struct):
    id: str
    created: int
    max_model_len: int
    object: str = "model"
    owned_by: str = "tandem"


class ModelList(Struct):
    data: list[Model]
    object: str = "list"
