"""Prompts of /v1/completions: texts or ids, one or several, as the ids that they are and the text that they read as.

Knows nothing of answers.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

from tandem.errors import RequestError
from tandem.runtime.http.schema import CompletionBody
from tandem.runtime.http.writers import Echo
from tandem.runtime.service import Service

MAX_PROMPTS = 1024
"""A bound on what one body may ask for, far above what any queue takes."""


@dataclass(frozen=True, slots=True)
class Prompt:
    """Token ids, the field that they came in, and the text that they were, if it is all of it."""

    ids: tuple[int, ...]
    param: str
    text: str | None = None

    def truncated(self, most: int) -> Prompt:
        """Its last `most` ids."""
        cut = len(self.ids) - most
        return Prompt(self.ids[cut:], self.param) if cut > 0 else self


def completion_prompts(service: Service, body: CompletionBody) -> list[Prompt]:
    """One prompt for a text or a list of ids, one each for several of them. Errors name `prompt` or `prompt[i]`."""
    given, special = body.prompt, body.add_special_tokens is not False
    if isinstance(given, str) or (given and all(isinstance(part, int) for part in given)):
        return [_prompt(service, given, "prompt", special)]
    if not given or len({type(part) for part in given}) > 1:
        raise RequestError("give a text, a list of texts, token ids, or a list of lists of ids", param="prompt")
    if len(given) > MAX_PROMPTS:
        raise RequestError(f"{len(given)} prompts; at most {MAX_PROMPTS} go in one request", param="prompt")
    params = [f"prompt[{place}]" if len(given) > 1 else "prompt" for place in range(len(given))]
    return [_prompt(service, part, param, special) for part, param in zip(given, params, strict=True)]


def _prompt(service: Service, given: object, param: str, special: bool) -> Prompt:
    """`given` is a text or a list of ids."""
    if isinstance(given, str):
        return Prompt(service.encode(given, add_special_tokens=special, param=param), param, given)
    return Prompt(tuple(cast(list[int], given)), param)


def echo_of(service: Service, prompt: Prompt) -> Echo:
    """A text as it was given, ids as they read, special ones included. The prompt has at least one."""
    text = service.decode(prompt.ids, param=prompt.param) if prompt.text is None else prompt.text
    return Echo(text, prompt.ids[0])
