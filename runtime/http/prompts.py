"""From a checked body to what the engine is asked: prompt ids, budget, sampling, stops.

Knows the endpoints' defaults; runs beside the event loop, for long prompts take milliseconds to encode.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from tandem.errors import RequestError
from tandem.runtime.guide import GuideMaker
from tandem.runtime.http import wishes
from tandem.runtime.http.completion_prompts import Prompt, completion_prompts, echo_of
from tandem.runtime.http.constraints import constraint_guides
from tandem.runtime.http.logprobs import Wording
from tandem.runtime.http.order import Order, candidates
from tandem.runtime.http.readings import begins_in_thoughts, chat_guides, reading_of
from tandem.runtime.http.replies import CHAT, COMPLETION, Form
from tandem.runtime.http.schema import Body, ChatBody, CompletionBody, Message, Tool
from tandem.runtime.http.thoughts import template_variables, thoughts_wish
from tandem.runtime.http.tools import offer_of
from tandem.runtime.http.turns import offered, one_call_each, retold, turns_of
from tandem.runtime.http.writers import ChatWriter, CompletionWriter, Told, WriterMaker
from tandem.runtime.request import Request
from tandem.runtime.service import Service

COMPLETION_TOKENS = 16
"""OpenAI's `max_tokens` of /v1/completions when none is given; chat takes the rest of the context."""

TEMPLATE_OWN = {"messages", "tools", "add_generation_prompt"}


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
    limit = COMPLETION_TOKENS if body.token_limit is None else body.token_limit
    if limit == 0 and not body.echo and body.prompt_logprobs is None:
        raise RequestError("max_tokens is 0 and nothing of the prompt is asked for; ask for echo", param="max_tokens")
    prompts = _truncated(service, body, completion_prompts(service, body))
    guides = constraint_guides(service, body, ignore_eos=bool(body.ignore_eos))
    requests = _requests(service, body, prompts, limit, guides)
    echoes = [echo_of(service, prompt) if body.echo else None for prompt in prompts]
    told, given = Told(wishes.alternatives(body), body.prompt_logprobs), body.n or 1

    def writer(index: int, wording: Wording) -> CompletionWriter:
        return CompletionWriter(index, wording, told, echoes[index // given])

    return _order(body, requests, COMPLETION, writer)


def chat_order(service: Service, body: ChatBody) -> Order:
    check_model(service, body.model)
    offer = offer_of(body)
    text = chat_text(
        service,
        body.messages,
        offer.tools if offer else (),
        body.add_generation_prompt,
        template_variables(service, body),
        continued=body.continue_final_message,
    )
    ids = service.encode(text, add_special_tokens=bool(body.add_special_tokens), param="messages")
    prompts = _truncated(service, body, [Prompt(ids, "messages")])
    in_thoughts = begins_in_thoughts(body, text)
    reading = reading_of(service, body, offer, in_thoughts=in_thoughts)
    guides = chat_guides(service, body, offer, reading, text)
    framed = reading is not None
    requests = _requests(service, body, prompts, body.token_limit, guides, framed=framed, in_thoughts=in_thoughts)
    told = Told(wishes.alternatives(body), body.prompt_logprobs)
    writer = partial(ChatWriter, told=told, reading=reading, stop_ids=requests[0].stop_ids)
    order = _order(body, requests, CHAT, writer)
    if reading is None:
        return order
    until = None if reading.wants_all else reading.until
    return replace(order, rules=replace(order.rules, shown=reading.markers, until=until))


def chat_text(
    service: Service,
    messages: Sequence[Message],
    tools: Sequence[Tool],
    opened: bool | None,
    variables: Mapping[str, Any] | None,
    *,
    continued: bool | None = None,
) -> str:
    """`messages` through the bundle's template, with the beginning of the answer unless `opened` is False.

    `continued` leaves the last message open instead, for the answer to go on with it.
    """
    variables = variables or {}
    if taken := TEMPLATE_OWN & variables.keys():
        raise RequestError(f"{min(taken)} has a field of its own", param=f"chat_template_kwargs.{min(taken)}")
    turns, functions = turns_of(messages), offered(tools)
    if not service.chat.knows_tools:
        turns, functions = retold(turns, functions, service.call_format), []
    elif service.chat.knows_one_call:
        turns = one_call_each(turns)
    if continued and opened:
        raise RequestError(
            "the answer goes on with the last message or begins one of its own; leave out add_generation_prompt",
            param="continue_final_message",
        )
    if continued:
        return service.chat.render_open(turns, tools=functions, variables=variables)
    return service.chat.render(turns, tools=functions, add_generation_prompt=opened is not False, variables=variables)


def _order(body: Body, requests: Sequence[Request], form: Form, writer: WriterMaker) -> Order:
    """All choices of `requests`, one a prompt."""
    given = body.n or 1
    made = _best_of(body, given)
    if made > given:  # to tell the best, each token's logprob is needed
        requests = [replace(request, logprobs=request.logprobs or 0) for request in requests]
    every = [candidate for request in requests for candidate in candidates(request, made)]
    return Order(every, body.text_rules, given, made, form, writer)


def _best_of(body: Body, n: int) -> int:
    """How many answers to make of each prompt."""
    best_of = body.best_of if isinstance(body, CompletionBody) and body.best_of else n
    if best_of < n:
        raise RequestError(f"best_of is {best_of}; it must be at least n, which is {n}", param="best_of")
    if best_of > n and body.stream:
        raise RequestError(
            f"best_of {best_of} of n {n}: the best are known in the end, so not with stream", param="best_of"
        )
    return best_of


def _requests(
    service: Service,
    body: Body,
    prompts: Sequence[Prompt],
    max_tokens: int | None,
    guides: Sequence[GuideMaker],
    *,
    framed: bool = False,
    in_thoughts: bool | None = None,
) -> list[Request]:
    """What the engine is asked about each prompt; `framed` and `in_thoughts` as in `Service.request`."""
    sampling, penalties = wishes.sampling(body), wishes.penalties(body)
    thoughts = thoughts_wish(service, body)
    alternatives, of_prompt = wishes.alternatives(body), wishes.prompt_alternatives(body)
    return [
        service.request(
            prompt.ids,
            max_tokens=max_tokens,
            sampling=sampling,
            penalties=penalties,
            logprobs=alternatives,
            prompt_logprobs=of_prompt,
            stop_ids=body.stop_token_ids or (),
            ignore_eos=bool(body.ignore_eos),
            thoughts=thoughts,
            in_thoughts=in_thoughts,
            guides=guides,
            framed=framed,
            param=prompt.param,
        )
        for prompt in prompts
    ]


def _truncated(service: Service, body: Body, prompts: Sequence[Prompt]) -> Sequence[Prompt]:
    """Each prompt's last `truncate_prompt_tokens`; -1 leaves room for one token of an answer."""
    most = body.truncate_prompt_tokens
    if most is None:
        return prompts
    return [prompt.truncated(service.context_length - 1 if most < 0 else most) for prompt in prompts]
