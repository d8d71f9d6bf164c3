"""Parts of an answer as chat replies word them: a message, or the delta of a chunk.

Knows nothing of texts or events.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import UNSET

from tandem.runtime.http.replies import Call, CallDelta, ChatDelta, ChatMessage, FunctionCall, FunctionDelta
from tandem.runtime.reading.parts import CallArguments, CallOpened, Content, Part, Reasoning


def message_of(parts: Sequence[Part]) -> ChatMessage:
    """The message of a whole answer."""
    content = "".join(part.text for part in parts if isinstance(part, Content))
    reasoning = "".join(part.text for part in parts if isinstance(part, Reasoning))
    opened = [part for part in parts if isinstance(part, CallOpened)]
    arguments: list[list[str]] = [[] for _ in opened]
    for part in parts:
        if isinstance(part, CallArguments):
            arguments[part.index].append(part.text)
    calls = [Call(part.id, FunctionCall(part.name, "".join(arguments[part.index]))) for part in opened]
    return ChatMessage(
        content if content or not (calls or reasoning) else None,
        reasoning_content=reasoning or UNSET,
        tool_calls=calls or UNSET,
    )


def delta_of(parts: Sequence[Part]) -> ChatDelta:
    """What `parts` add to the message: a call's first piece of arguments stands beside its name."""
    content = "".join(part.text for part in parts if isinstance(part, Content))
    reasoning = "".join(part.text for part in parts if isinstance(part, Reasoning))
    calls: dict[int, CallDelta] = {}
    for part in parts:
        if isinstance(part, CallOpened):
            calls[part.index] = CallDelta(part.index, FunctionDelta(part.name, ""), part.id, "function")
        elif isinstance(part, CallArguments):
            function = calls.setdefault(part.index, CallDelta(part.index, FunctionDelta())).function
            function.arguments = (function.arguments or "") + part.text
    return ChatDelta(None, content or None, reasoning or None, [*calls.values()] or None)
