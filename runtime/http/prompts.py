"""From a checked body to what the engine is asked: prompt ids, budget, sampling, stops.

Knows the endpoints' defaults; runs beside the event loop, for long prompts take milliseconds to encode.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, cast

from tandem.errors import RequestError
from tandem.runtime.grammar.specification import lark
from tandem.runtime.guide import GuideMaker
from tandem.runtime.http.constraints import constraint_guides
from tandem.runtime.http.order import Order, candidates
from tandem.runtime.http.replies import CHAT, COMPLETION, Form
from tandem.runtime.http.schema import Body, ChatBody, CompletionBody, Message, Tool
from tandem.runtime.http.tools import Offer, offer_of
from tandem.runtime.http.turns import offered, one_call_each, retold, turns_of
from tandem.runtime.http.writers import ChatWriter, CompletionWriter, WriterMaker
from tandem.runtime.reading.forced import forced_calls
from tandem.runtime.reading.formats import Reading, is_open
from tandem.runtime.request import Penalties, Request, Sampling
from tandem.runtime.service import Service

COMPLETION_TOKENS = 16
"""OpenAI's `max_tokens` of /v1/completions when none is given; chat takes the rest of the context."""

TEMPLATE_OWN = {"messages", "tools", "add_generation_prompt"}


@dataclass(frozen=True, slots=True)
class Prompt:
    """Token ids, and the field that they came in."""

    ids: tuple[int, ...]
    param: str


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
    requests = _requests(service, body, _prompts(service, body.prompt), body.token_limit or COMPLETION_TOKENS)
    writer = partial(CompletionWriter, told=_alternatives(body) is not None)
    return _order(body, requests, COMPLETION, writer)


def chat_order(service: Service, body: ChatBody) -> Order:
    check_model(service, body.model)
    offer = offer_of(body)
    tools = offer.tools if offer else ()
    text = chat_text(service, body.messages, tools, body.add_generation_prompt, body.chat_template_kwargs)
    prompt = Prompt(service.encode(text, add_special_tokens=False, param="messages"), "messages")
    reading = _reading(service, offer, text)
    guides = _forced(service, offer, reading, body) if offer and reading and offer.is_forced else None
    requests = _requests(service, body, [prompt], body.token_limit, guides)
    stop_ids = requests[0].stop_ids
    writer = partial(ChatWriter, told=_alternatives(body) is not None, reading=reading, stop_ids=stop_ids)
    return replace(_order(body, requests, CHAT, writer), reading=reading)


def chat_text(
    service: Service,
    messages: Sequence[Message],
    tools: Sequence[Tool],
    opened: bool | None,
    variables: Mapping[str, Any] | None,
) -> str:
    """`messages` through the bundle's template, with the beginning of the answer unless `opened` is False."""
    variables = variables or {}
    if taken := TEMPLATE_OWN & variables.keys():
        raise RequestError(f"{min(taken)} has a field of its own", param=f"chat_template_kwargs.{min(taken)}")
    turns, functions = turns_of(messages), offered(tools)
    if not service.chat.knows_tools:
        turns, functions = retold(turns, functions, service.call_format), []
    elif service.chat.knows_one_call:
        turns = one_call_each(turns)
    return service.chat.render(turns, tools=functions, add_generation_prompt=opened is not False, variables=variables)


def _reading(service: Service, offer: Offer | None, prompt: str) -> Reading | None:
    """How an answer to `prompt` is read; None where its text is all content."""
    if offer is None and not service.thinks:
        return None
    tools, thoughts = offer.schemas if offer else None, is_open(prompt) if service.thinks else None
    reading = Reading(service.call_format, tools, thoughts, offer is None or offer.parallel)
    return replace(reading, special=service.added(reading.markers, special=True))


def _order(body: Body, requests: Sequence[Request], form: Form, writer: WriterMaker) -> Order:
    """All choices of `requests`, one a prompt."""
    given = body.n or 1
    made = _best_of(body, given)
    if made > given:  # to tell the best, each token's logprob is needed
        requests = [replace(request, logprobs=request.logprobs or 0) for request in requests]
    every = [candidate for request in requests for candidate in candidates(request, made)]
    return Order(every, body.stops, given, made, form, writer)


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


def _forced(service: Service, offer: Offer, reading: Reading, body: ChatBody) -> list[GuideMaker]:
    """The guide of an answer that must be calls. Forms asked of content say nothing of it: it has none."""
    if body.ignore_eos:
        raise RequestError("ignore_eos goes against tool_choice: an answer ends with its calls", param="ignore_eos")
    several = offer.parallel and isinstance(body.tool_choice, str)
    tokens = service.added(reading.markers)
    text = forced_calls(offer.schemas, reading.format, several=several, thoughts=reading.thoughts, tokens=tokens)
    return [service.grammars.compile(lark(text), "tool_choice")]


def _requests(
    service: Service,
    body: Body,
    prompts: Sequence[Prompt],
    max_tokens: int | None,
    guides: Sequence[GuideMaker] | None = None,
) -> list[Request]:
    """What the engine is asked about each prompt; `guides` stand for those of the forms that the body asks for."""
    sampling = Sampling(
        temperature=body.temperature or 0.0,
        top_p=1.0 if body.top_p is None else body.top_p,
        top_k=max(body.top_k or 0, 0),
        min_p=body.min_p or 0.0,
        seed=body.seed,
    )
    penalties, alternatives = _penalties(body), _alternatives(body)
    if guides is None:
        guides = constraint_guides(service, body, ignore_eos=bool(body.ignore_eos))
    return [
        service.request(
            prompt.ids,
            max_tokens=max_tokens,
            sampling=sampling,
            penalties=penalties,
            logprobs=alternatives,
            stop_ids=body.stop_token_ids or (),
            ignore_eos=bool(body.ignore_eos),
            guides=guides,
            param=prompt.param,
        )
        for prompt in prompts
    ]


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


def _prompts(service: Service, given: str | list[str | int | list[int]]) -> list[Prompt]:
    """One prompt for a text or a list of ids, one each for several of them."""
    if isinstance(given, str) or (given and all(isinstance(part, int) for part in given)):
        return [_prompt(service, given, "prompt")]
    if not given or len({type(part) for part in given}) > 1:
        raise RequestError("give a text, a list of texts, token ids, or a list of lists of ids", param="prompt")
    params = [f"prompt[{place}]" if len(given) > 1 else "prompt" for place in range(len(given))]
    return [_prompt(service, part, param) for part, param in zip(given, params, strict=True)]


def _prompt(service: Service, given: object, param: str) -> Prompt:
    """`given` is a text or a list of ids."""
    if isinstance(given, str):
        return Prompt(service.encode(given, add_special_tokens=True, param=param), param)
    return Prompt(tuple(cast(list[int], given)), param)
