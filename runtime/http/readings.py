"""How the answer to a chat is read, and what form it is held to: calls, or what is asked of its content.

Knows nothing of templates or sampling.
"""

from __future__ import annotations

from dataclasses import replace

from tandem.errors import RequestError
from tandem.runtime.grammar.specification import lark
from tandem.runtime.guide import GuideMaker
from tandem.runtime.http.constraints import constraint_guides
from tandem.runtime.http.schema import ChatBody
from tandem.runtime.http.tools import Offer
from tandem.runtime.http.turns import turns_of
from tandem.runtime.reading.forced import Surroundings, around_content, forced_calls
from tandem.runtime.reading.formats import Reading, is_closed, is_left_open, is_open
from tandem.runtime.service import Service


def reading_of(service: Service, body: ChatBody, offer: Offer | None, *, in_thoughts: bool) -> Reading | None:
    """How an answer that begins `in_thoughts`, or not, is read; None where its text is all content."""
    if offer is None and not service.thinks:
        return None
    tools, thoughts = offer.schemas if offer else None, in_thoughts if service.thinks else None
    reading = Reading(service.call_format, tools, thoughts, offer is None or offer.parallel)
    if body.skip_special_tokens is False:
        return reading
    return replace(reading, special=service.added(reading.markers, special=True))


def begins_in_thoughts(body: ChatBody, prompt: str) -> bool:
    """Whether the answer to `prompt` begins inside a block of thoughts: just opened, or gone on with."""
    said = turns_of(body.messages[-1:])[0]["content"] if body.continue_final_message else ""
    return is_open(prompt) or is_left_open(said)


def chat_guides(
    service: Service, body: ChatBody, offer: Offer | None, reading: Reading | None, prompt: str
) -> list[GuideMaker]:
    """The guide of the answer's form, if it has one.

    A form is one of content: thoughts come before it, calls may come instead. Where calls are forced it says nothing.
    """
    if reading is None:
        return constraint_guides(service, body, ignore_eos=bool(body.ignore_eos))
    # An answer may begin with thoughts, unless the prompt has had them.
    thoughts = None if is_closed(prompt) else reading.thoughts
    around = Surroundings(reading.format, thoughts, service.added(reading.markers))
    if offer is None or not offer.is_forced:
        tools = offer.schemas if offer else {}

        def frame() -> str:
            return around_content(tools, around, several=reading.parallel)

        return constraint_guides(service, body, ignore_eos=bool(body.ignore_eos), frame=frame)
    if body.ignore_eos:
        raise RequestError("ignore_eos goes against tool_choice: an answer ends with its calls", param="ignore_eos")
    several = offer.parallel and isinstance(body.tool_choice, str)
    try:
        wanted = lark(forced_calls(offer.schemas, around, several=several))
    except RequestError as error:
        raise RequestError(f"tool_choice: {error}", param="tool_choice", code="invalid_grammar") from error
    return [service.grammars.compile(wanted, "tool_choice")]
