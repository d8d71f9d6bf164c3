"""Messages as chat templates read them: plain text, calls with their arguments as objects, absent fields left out.

Knows nothing of tokens or of what templates make of them.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from tandem.errors import RequestError
from tandem.runtime.chat import plain_content
from tandem.runtime.http.schema import Message, Tool, ToolCall
from tandem.runtime.reading.formats import Format
from tandem.runtime.reading.writing import EXAMPLES, written

Turn = dict[str, Any]

TOOLS_AS_TEXT = """You may call functions. Those there are, one a line:
{lines}

To call one, answer with
{example}"""


def turns_of(messages: Sequence[Message]) -> list[Turn]:
    """Raises RequestError for a message that says nothing."""
    return [_turn(place, message) for place, message in enumerate(messages)]


def offered(tools: Sequence[Tool]) -> list[dict[str, Any]]:
    """Tools in OpenAI's form, for templates to show to the model."""
    return [{"type": "function", "function": _function(tool)} for tool in tools]


def _function(tool: Tool) -> dict[str, Any]:
    function = tool.function
    fields = {"name": function.name, "description": function.description, "parameters": function.parameters}
    return {name: value for name, value in fields.items() if value is not None}


def _turn(place: int, message: Message) -> Turn:
    parts, calls = message.content, [_call(call) for call in message.tool_calls or ()]
    if parts is None and not calls:
        raise RequestError(f"message {place} has no content", param=f"messages[{place}].content")
    content = plain_content(parts if parts is None or isinstance(parts, str) else [part.text for part in parts])
    rest = {
        "name": message.name,
        "reasoning_content": message.reasoning_content,
        "tool_calls": calls or None,
        "tool_call_id": message.tool_call_id,
    }
    return {"role": message.role, "content": content} | {k: v for k, v in rest.items() if v is not None}


def _call(call: ToolCall) -> dict[str, Any]:
    function = {"name": call.function.name, "arguments": _object(call.function.arguments)}
    return ({} if call.id is None else {"id": call.id}) | {"type": "function", "function": function}


def _object(arguments: str | dict[str, Any] | None) -> str | dict[str, Any]:
    """Arguments as the object that templates write out; a text that holds none, cut short maybe, stays as it is."""
    if not isinstance(arguments, str):
        return arguments or {}
    try:
        value = json.loads(arguments) if arguments.strip() else {}
    except (ValueError, RecursionError):
        return arguments
    return value if isinstance(value, dict) else arguments


def one_call_each(turns: Sequence[Turn]) -> list[Turn]:
    """A turn with several calls as several, each with its result behind it, for templates that know no other."""
    said: list[Turn] = []
    waiting: list[Turn] = []
    for turn in turns:
        if turn["role"] == "tool" and waiting:
            fits = (call for call in waiting if call["tool_calls"][0].get("id") == turn.get("tool_call_id"))
            call = next(fits, waiting[0])
            waiting.remove(call)
            said += [call, turn]
            continue
        said += waiting
        calls = turn.get("tool_calls", ())
        waiting = [turn | {"tool_calls": [call]} | ({"content": ""} if i else {}) for i, call in enumerate(calls)]
        if not calls:
            said.append(turn)
    return said + waiting


def retold(turns: Sequence[Turn], functions: Sequence[Turn], form: Format) -> list[Turn]:
    """Tools, calls and results as plain text, for templates that know none of them."""
    told = [_as_text(turn, form) for turn in turns]
    if not functions:
        return told
    lines = "\n".join(json.dumps(function, ensure_ascii=False) for function in functions)
    text = TOOLS_AS_TEXT.format(lines=lines, example=EXAMPLES[form])
    if told[0]["role"] in ("system", "developer"):
        first = told[0] | {"content": f"{told[0]['content']}\n\n{text}"}
        return [first, *told[1:]]
    return [{"role": "system", "content": text}, *told]


def _as_text(turn: Turn, form: Format) -> Turn:
    if turn["role"] == "tool":
        return {"role": "user", "content": f"<tool_response>\n{turn['content']}\n</tool_response>"}
    if "tool_calls" not in turn:
        return turn
    functions = [call["function"] for call in turn["tool_calls"]]
    calls = [written(form, function["name"], function["arguments"]) for function in functions]
    content = [turn["content"]] if turn["content"] else []
    return {"role": turn["role"], "content": "\n".join([*content, *calls])}
