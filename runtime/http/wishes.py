"""What a body wishes of each token: sampling, penalties, logprobs. null stands for the default everywhere.

Knows nothing of prompts and texts.
"""

from __future__ import annotations

from tandem.errors import RequestError
from tandem.runtime.http.schema import Body, ChatBody, CompletionBody
from tandem.runtime.request import Penalties, Sampling


def sampling(body: Body) -> Sampling:
    return Sampling(
        temperature=body.temperature or 0.0,
        top_p=1.0 if body.top_p is None else body.top_p,
        top_k=max(body.top_k or 0, 0),
        min_p=body.min_p or 0.0,
        seed=body.seed,
    )


def prompt_alternatives(body: Body) -> int | None:
    """How many alternatives to each of the prompt's tokens are measured: an echo tells as many as of the answer's."""
    if body.prompt_logprobs is not None and body.stream:
        raise RequestError("prompt_logprobs are not streamed; leave out stream", param="prompt_logprobs")
    echoed = alternatives(body) if isinstance(body, CompletionBody) and body.echo else None
    return max((count for count in (body.prompt_logprobs, echoed) if count is not None), default=None)


def alternatives(body: Body) -> int | None:
    """How many alternatives to each token's logprob are wanted; None: no logprobs at all.

    Chat says so with a flag and a count beside it, completions with a count.
    """
    chat, count, asked = isinstance(body, ChatBody), body.top_logprobs or 0, body.logprobs
    told = asked is not None and asked is not False
    if told and isinstance(asked, bool) != chat:
        wanted = "true or false, with top_logprobs" if chat else "a count of alternatives"
        raise RequestError(f"logprobs is {asked}; here it is {wanted}", param="logprobs", code="invalid_value")
    if count and not (told and chat):
        raise RequestError(
            "top_logprobs needs logprobs: true" if chat else "top_logprobs is for chats; logprobs takes the count here",
            param="top_logprobs",
            code="invalid_value",
        )
    if not told:
        return None
    return count if chat else int(asked or 0)


def penalties(body: Body) -> Penalties:
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
