"""Whether a request can ever be served: what is wrong with it is said before it waits.

Knows nothing of queues, lanes or passes.
"""

from __future__ import annotations

from tandem.errors import RequestError
from tandem.runtime import penalties
from tandem.runtime.logprobs import MAX_ALTERNATIVES
from tandem.runtime.request import Request
from tandem.runtime.sampling import validate


def require_servable(request: Request, context_length: int, vocab_size: int) -> None:
    """Raises RequestError for a request that an engine of these capacities can never serve."""
    num_prompt = len(request.prompt)
    if not num_prompt:
        raise RequestError("the prompt is empty; give at least one token", param="prompt", code="invalid_value")
    if num_prompt >= context_length:
        raise RequestError(
            f"the prompt has {num_prompt} tokens and the context holds {context_length}, the answer included;"
            " shorten the prompt",
            param="prompt",
            code="context_length_exceeded",
        )
    stray = next((token for token in request.prompt if not 0 <= token < vocab_size), None)
    if stray is not None:
        raise RequestError(
            f"token id {stray} of the prompt is not in the vocabulary of {vocab_size}",
            param="prompt",
            code="invalid_value",
        )
    if request.max_tokens < 0:
        raise RequestError(
            f"max_tokens is {request.max_tokens}; it must be at least 0", param="max_tokens", code="invalid_value"
        )
    for param, count in (("logprobs", request.logprobs), ("prompt_logprobs", request.prompt_logprobs)):
        if not 0 <= (count or 0) <= MAX_ALTERNATIVES:
            raise RequestError(
                f"{count} alternatives are asked for; at most {MAX_ALTERNATIVES} are given",
                param=param,
                code="invalid_value",
            )
    validate(request.sampling)
    penalties.validate(request.penalties, vocab_size, request.max_tokens)
