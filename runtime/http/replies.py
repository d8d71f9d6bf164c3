"""Bodies of answers: completions and chat completions, whole and in chunks, and the list of models.

Knows only shapes; what a choice says is `writers`' matter.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from msgspec import UNSET, Struct, UnsetType, field

from tandem.runtime.http.logprobs import ChatLogprobs, PromptLogprobs, TextLogprobs
from tandem.runtime.service import Service


class PromptDetails(Struct):
    cached_tokens: int = 0


class CompletionDetails(Struct):
    reasoning_tokens: int


class Usage(Struct):
    """No prompt's work is taken from another request's; `completion_tokens_details` is left out for models that do not
    think."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptDetails = field(default_factory=PromptDetails)
    completion_tokens_details: CompletionDetails | UnsetType = UNSET


class TextChoice(Struct):
    text: str
    index: int
    finish_reason: str | None = None
    logprobs: TextLogprobs | None = None
    prompt_logprobs: PromptLogprobs | UnsetType = UNSET


class FunctionCall(Struct):
    """`arguments` is JSON as text."""

    name: str
    arguments: str


class Call(Struct):
    id: str
    function: FunctionCall
    type: str = "function"


class FunctionDelta(Struct, omit_defaults=True):
    name: str | None = None
    arguments: str | None = None


class CallDelta(Struct, omit_defaults=True):
    """A piece of the call `index`; id, type and name come with its first."""

    index: int
    function: FunctionDelta
    id: str | None = None
    type: str | None = None


class ChatMessage(Struct):
    """`content` is null where there are calls or thoughts and nothing else."""

    content: str | None
    role: str = "assistant"
    refusal: None = None
    reasoning_content: str | UnsetType = UNSET
    tool_calls: list[Call] | UnsetType = UNSET


class ChatChoice(Struct):
    message: ChatMessage
    index: int
    finish_reason: str
    logprobs: ChatLogprobs | None = None


class ChatDelta(Struct, omit_defaults=True):
    role: str | None = None
    content: str | None = None
    reasoning_content: str | None = None
    tool_calls: list[CallDelta] | None = None


class ChatChunkChoice(Struct):
    delta: ChatDelta
    index: int
    finish_reason: str | None = None
    logprobs: ChatLogprobs | None = None


Choice = TextChoice | ChatChoice | ChatChunkChoice
AnyChoice = TypeVar("AnyChoice", bound=Choice)


class Reply(Struct, Generic[AnyChoice]):
    """A whole answer or one chunk of it; what is not asked for is left out."""

    id: str
    object: str
    created: int
    model: str
    system_fingerprint: str
    choices: Sequence[AnyChoice]
    usage: Usage | UnsetType | None = UNSET
    prompt_logprobs: PromptLogprobs | UnsetType = UNSET


@dataclass(frozen=True, slots=True)
class Form:
    """What an endpoint calls its replies."""

    prefix: str
    whole: str
    chunk: str


COMPLETION = Form("cmpl", "text_completion", "text_completion")
CHAT = Form("chatcmpl", "chat.completion", "chat.completion.chunk")


class Letterhead:
    """What all replies to one request share: id, time, model and fingerprint."""

    def __init__(self, service: Service, form: Form) -> None:
        self._id = f"{form.prefix}-{uuid.uuid4().hex}"
        self._created = int(time.time())
        self._service, self._form = service, form

    def whole(self, choices: Sequence[Choice], usage: Usage, prompt: PromptLogprobs | UnsetType = UNSET) -> Reply:
        """`prompt` are its logprobs, where they stand beside the choices."""
        return self._reply(self._form.whole, choices, usage, prompt)

    def chunk(self, choice: Choice | None, usage: Usage | UnsetType | None) -> Reply:
        return self._reply(self._form.chunk, [] if choice is None else [choice], usage)

    def _reply(
        self,
        name: str,
        choices: Sequence[Choice],
        usage: Usage | UnsetType | None,
        prompt: PromptLogprobs | UnsetType = UNSET,
    ) -> Reply:
        model, fingerprint = self._service.model, self._service.fingerprint
        return Reply(self._id, name, self._created, model, fingerprint, choices, usage, prompt)


class Model(Struct):
    id: str
    created: int
    max_model_len: int
    object: str = "model"
    owned_by: str = "tandem"


class ModelList(Struct):
    data: list[Model]
    object: str = "list"
