"""Texts and chats to token ids and back, as vLLM's `/tokenize` and `/detokenize` do it.

Needs a service's tokenizer and template, never its engine. Runs beside the event loop: a long text takes seconds.
"""

from __future__ import annotations

from typing import Any

from msgspec import Struct

from tandem.errors import RequestError
from tandem.runtime.http.prompts import chat_text, check_model
from tandem.runtime.http.schema import Message, TokenId, Tools, read_body
from tandem.runtime.http.tools import checked_schemas
from tandem.runtime.service import Service

CHAT_ONLY = ("tools", "add_generation_prompt", "continue_final_message", "chat_template_kwargs")


class TokenizeBody(Struct, kw_only=True):
    """Either `prompt` or `messages`. null stands for the default everywhere.

    `add_special_tokens` defaults to True for a prompt and to False for messages, whose template has its own markers.
    """

    model: str | None = None
    prompt: str | None = None
    messages: list[Message] | None = None
    tools: Tools | None = None
    add_special_tokens: bool | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    return_token_strs: bool | None = None


class DetokenizeBody(Struct, kw_only=True):
    model: str | None = None
    tokens: list[TokenId]


class Tokenized(Struct):
    """`token_strs` are entries of the vocabulary as they stand there, null unless asked for."""

    count: int
    max_model_len: int
    tokens: tuple[int, ...]
    token_strs: list[str | None] | None = None


class Detokenized(Struct):
    prompt: str


def tokenize(service: Service, data: bytes) -> Tokenized:
    """Raises RequestError for a body that is wrong."""
    body = read_body(data, TokenizeBody)
    check_model(service, body.model)
    ids = _ids(service, body)
    strings = [service.tokenizer.id_to_token(i) for i in ids] if body.return_token_strs else None
    return Tokenized(len(ids), service.context_length, ids, strings)


def detokenize(service: Service, data: bytes) -> Detokenized:
    """The text of all ids, special ones too. Raises RequestError for an id that the vocabulary lacks."""
    body = read_body(data, DetokenizeBody)
    check_model(service, body.model)
    known = {i: service.tokenizer.id_to_token(i) is not None for i in set(body.tokens)}
    for place, i in enumerate(body.tokens):
        if not known[i]:
            raise RequestError(f"token id {i} is not in the vocabulary", param=f"tokens[{place}]", code="invalid_value")
    return Detokenized(service.decode(body.tokens, param="tokens"))


def _ids(service: Service, body: TokenizeBody) -> tuple[int, ...]:
    if body.messages is None:
        if body.prompt is None:
            raise RequestError("there is nothing to tokenize; give prompt or messages", param="prompt")
        if stray := next((name for name in CHAT_ONLY if getattr(body, name) is not None), None):
            raise RequestError(f"{stray} goes with messages; leave it out for a prompt", param=stray)
        return service.encode(body.prompt, add_special_tokens=body.add_special_tokens is not False)
    if body.prompt is not None:
        raise RequestError("prompt and messages exclude each other; give one of them", param="prompt")
    if not body.messages:
        raise RequestError("messages is empty; give at least one", param="messages")
    tools = body.tools or []
    checked_schemas(tools)
    text = chat_text(
        service,
        body.messages,
        tools,
        body.add_generation_prompt,
        body.chat_template_kwargs,
        continued=body.continue_final_message,
    )
    return service.encode(text, add_special_tokens=bool(body.add_special_tokens), param="messages")
