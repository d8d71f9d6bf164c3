"""What a body says of an answer's thoughts: a budget, an effort, and whether the template is to leave them out.

Knows nothing of blocks or tokens.
"""

from __future__ import annotations

from typing import Any

from tandem.errors import RequestError
from tandem.runtime.http.schema import Body, ChatBody
from tandem.runtime.service import Service
from tandem.runtime.thinking.budget import Effort, Wish
from tandem.runtime.thinking.model import SWITCH

EFFORT = "reasoning_effort"
"""The field, and the variable of templates that read it themselves."""


def thoughts_wish(service: Service, body: Body) -> Wish:
    """Raises RequestError where thoughts are asked for of a model that has none."""
    wish = Wish(body.max_reasoning_tokens, body.reasoning_effort)
    if service.thinking is None and not wish.neutral:
        param = "max_reasoning_tokens" if wish.max_tokens is not None else EFFORT
        raise RequestError(
            f"{param} is for models that think, and the chat template of this one knows no <think>; leave it out",
            param=param,
            code="unsupported_value",
        )
    return wish


def template_variables(service: Service, body: ChatBody) -> dict[str, Any]:
    """The body's own variables, behind those that its effort sets where the template reads them."""
    own, effort = body.chat_template_kwargs or {}, body.reasoning_effort
    if effort is None:
        return own
    if effort is Effort.NONE and own.get(SWITCH):
        raise RequestError(
            f"reasoning_effort is none and chat_template_kwargs.{SWITCH} asks for thoughts; leave one of them out",
            param=EFFORT,
            code="invalid_value",
        )
    source, said = service.chat.source or "", dict[str, Any]()
    if EFFORT in source:
        said[EFFORT] = effort.value
    if effort is Effort.NONE and SWITCH in source:
        said[SWITCH] = False
    return said | own
