"""From a checked body to what the engine is asked: prompt ids, budget, sampling, stops.

Knows the endpoints' defaults; runs beside the event loop, for long prompts take milliseconds to encode.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tandem.errors import RequestError
from tandem.runtime.chat import plain_content
from tandem.runtime.http.schema import Body, ChatBody, CompletionBody, Message
from tandem.runtime.http.thoughts import template_variables, thoughts_wish
from tandem.runtime.request import Penalties, Request, Sampling
from tandem.runtime.service import Service

COMPLETION_TOKENS = 16
"""OpenAI's `max_tokens` of /v1/completions when none is given; chat takes the rest of the context."""

TEMPLATE_OWN = {"messages", "add_generation_prompt"}


@dataclass(frozen=True, slots=True)
class Order:
    """What a body asks for: a request and the stop strings that end its text."""

    request: Request
    stops: list[str]


def check_model(service: Service, name: str | None) -> None:
    """No name means the model that is served. Raises RequestError 404 for another one."""
    if name is not None and name != service.model:
        raise RequestError(
            f"the model {name!r} is not served here; this is {service.model!r}",
            param="model",
            code="model_not_found",
            status=404,
        )


def completion_order(service: Service, body: CompletionBody) -> Order:
    check_model(service, body.model)
    return _order(service, body, _prompt_ids(service, body.prompt), body.token_limit or COMPLETION_TOKENS, "prompt")


def chat_order(service: Service, body: ChatBody) -> Order:
    check_model(service, body.model)
    text = chat_text(service, body.messages, body.add_generation_prompt, template_variables(service, body))
    prompt = service.encode(text, add_special_tokens=False, param="messages")
    return _order(service, body, prompt, body.token_limit, "messages")


def chat_text(
    service: Service, messages: Sequence[Message], opened: bool | None, variables: Mapping[str, Any] | None
) -> str:
    """`messages` through the bundle's template, with the beginning of the answer unless `opened` is False."""
    variables = variables or {}
    if taken := TEMPLATE_OWN & variables.keys():
        raise RequestError(f"{min(taken)} has a field of its own", param=f"chat_template_kwargs.{min(taken)}")
    turns = [_message(i, message) for i, message in enumerate(messages)]
    return service.chat.render(turns, add_generation_prompt=opened is not False, variables=variables)


def _order(service: Service, body: Body, prompt: tuple[int, ...], max_tokens: int | None, param: str) -> Order:
    sampling = Sampling(
        temperature=body.temperature or 0.0,
        top_p=1.0 if body.top_p is None else body.top_p,
        top_k=max(body.top_k or 0, 0),
        min_p=body.min_p or 0.0,
        seed=body.seed,
    )
    request = service.request(
        prompt,
        max_tokens=max_tokens,
        sampling=sampling,
        penalties=_penalties(body),
        logprobs=_alternatives(body),
        stop_ids=body.stop_token_ids or (),
        ignore_eos=bool(body.ignore_eos),
        thoughts=thoughts_wish(service, body),
        param=param,
    )
    return Order(request, body.stops)


def _alternatives(body: Body) -> int | None:
    """How many alternatives to each token's logprob are wanted; None: no logprobs at all.

    Chat says so with a flag and a count beside it, completions with a count.
    """
    chat, count, asked = isinstance(body, ChatBody), body.top_logprobs or 0, body.logprobs
    if asked is None or asked is False:
        alternatives = None
    elif isinstance(asked, bool) != chat:
        wanted = "true or false, with top_logprobs" if chat else "a count of alternatives"
        raise RequestError(f"logprobs is {asked}; here it is {wanted}", param="logprobs", code="invalid_value")
    else:
        alternatives = count if chat else int(asked)
    if count and (alternatives is None or not chat):
        raise RequestError(
            "top_logprobs needs logprobs: true" if chat else "top_logprobs is for chats; logprobs takes the count here",
            param="top_logprobs",
            code="invalid_value",
        )
    return alternatives


def _penalties(body: Body) -> Penalties:
    bias = body.logit_bias or {}
    stray = next((key for key in bias if not (key.isascii() and key.isdigit())), None)
    if stray is not None:
        raise RequestError(f"logit_bias: {stray!r} is no token id", param="logit_bias", code="invalid_value")
    return Penalties(
        repetition=1.0 if body.repetition_penalty is None else body.repetition_penalty,
        presence=body.presence_penalty or 0.0,
        frequency=body.frequency_penalty or 0.0,
        no_repeat_ngram_size=body.no_repeat_ngram_size or 0,
        logit_bias=tuple((int(key), value) for key, value in bias.items()),
        min_tokens=body.min_tokens or 0,
    )


def _prompt_ids(service: Service, prompt: str | list[str | int | list[int]]) -> tuple[int, ...]:
    match prompt:
        case str(text) | [str(text)]:
            return service.encode(text, add_special_tokens=True)
        case [[*ids]] if not isinstance(prompt[0], str):
            return tuple(ids)
        case [*ids] if all(isinstance(i, int) for i in ids):
            return tuple(i for i in ids if isinstance(i, int))
        case _:
            raise RequestError("one prompt a request: give a text, or a list of one text or of ids", param="prompt")


def _message(index: int, message: Message) -> dict[str, object]:
    """A message as templates read it: plain text, absent fields left out."""
    parts = message.content
    if parts is None and message.tool_calls is None:
        raise RequestError(f"message {index} has no content", param=f"messages[{index}].content")
    content = plain_content(parts if parts is None or isinstance(parts, str) else [part.text for part in parts])
    rest = {"name": message.name, "tool_calls": message.tool_calls, "tool_call_id": message.tool_call_id}
    return {"role": message.role, "content": content} | {k: v for k, v in rest.items() if v is not None}
