"""The openai SDK with tools, over a real socket: streams, its parse and stream helpers, a whole turn with results."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Literal

import openai
import pytest
from pydantic import BaseModel

from tandem.runtime.http.app import build_app
from tests.readings import function
from tests.service import IM_END, ScriptedWorker, on_loopback, scripted_service

HI: list[Any] = [{"role": "user", "content": "hi"}]
TOOLS: Any = [function("find", text={"type": "string"}), function("ping")]
FIND = '<tool_call>\n{"name": "find", "arguments": {"text": "日本 😀"}}\n</tool_call>'
PING = '<tool_call>\n{"name": "ping", "arguments": {}}\n</tool_call>'


class Weather(BaseModel):
    """What the weather will be."""

    city: str
    unit: Literal["c", "f"]
    days: int


WEATHER = '<tool_call>\n{"name": "Weather", "arguments": {"city": "Oslo", "unit": "c", "days": 3}}\n</tool_call>'


@contextmanager
def sdk(text: str, size: int = 4, **changes: Any) -> Iterator[openai.OpenAI]:
    ids = [*text.encode(), IM_END]
    worker = ScriptedWorker([ids[begin : begin + size] for begin in range(0, len(ids), size)])
    service = scripted_service(worker, context_length=4000, **changes)
    with (
        on_loopback(build_app(service)) as url,
        openai.OpenAI(base_url=f"{url}/v1", api_key="key", max_retries=0) as client,
    ):
        yield client


@pytest.mark.parametrize("size", [1, 4, 1000])
def test_a_stream_of_calls(size: int) -> None:
    """BUG-51: one finish reason, `tool_calls`, in the last chunk of the choice; then the usage."""
    with sdk(f"so\n{FIND}\n{PING}", size) as client:
        stream = client.chat.completions.create(
            model="tiny", messages=HI, tools=TOOLS, stream=True, stream_options={"include_usage": True}
        )
        *chunks, last = list(stream)
    assert last.choices == [] and last.usage is not None
    assert [chunk.choices[0].finish_reason for chunk in chunks] == [None] * (len(chunks) - 1) + ["tool_calls"]
    deltas = [chunk.choices[0].delta for chunk in chunks]
    assert "".join(delta.content or "" for delta in deltas) == "so"
    pieces = [piece for delta in deltas for piece in delta.tool_calls or ()]
    names = [(piece.index, piece.function.name) for piece in pieces if piece.function and piece.function.name]
    assert names == [(0, "find"), (1, "ping")]
    told = ["".join(p.function.arguments or "" for p in pieces if p.function and p.index == i) for i in (0, 1)]
    assert [json.loads(text) for text in told] == [{"text": "日本 😀"}, {}]


def test_a_whole_turn() -> None:
    with sdk(FIND) as client:
        message = client.chat.completions.create(model="tiny", messages=HI, tools=TOOLS).choices[0].message
        assert message.content is None and message.tool_calls
        (call,) = message.tool_calls
        result = {"role": "tool", "tool_call_id": call.id, "content": "found"}
        for again in (message, message.model_dump(), message.model_dump(exclude_none=True)):
            messages: Any = [*HI, again, result]
            reply = client.chat.completions.create(model="tiny", messages=messages, tools=TOOLS)
            assert reply.choices[0].finish_reason == "tool_calls"


def test_the_parse_helper() -> None:
    with sdk(WEATHER) as client:
        tools: Any = [openai.pydantic_function_tool(Weather)]
        for parallel in (True, False):
            reply = client.chat.completions.parse(model="tiny", messages=HI, tools=tools, parallel_tool_calls=parallel)
            calls = reply.choices[0].message.tool_calls
            assert calls and calls[0].function.parsed_arguments == Weather(city="Oslo", unit="c", days=3)
        # The call that is forced passes the grammar's own reading in other tests; here the body is taken.
        named: Any = {"type": "function", "function": {"name": "Weather"}}
        reply = client.chat.completions.parse(model="tiny", messages=HI, tools=tools, tool_choice=named)
        assert reply.choices[0].finish_reason == "tool_calls"


@pytest.mark.parametrize("size", [1, 1000])
def test_the_stream_helper(size: int) -> None:
    tools: Any = [openai.pydantic_function_tool(Weather)]
    with sdk(WEATHER, size) as client, client.chat.completions.stream(model="tiny", messages=HI, tools=tools) as stream:
        events = list(stream)
        final = stream.get_final_completion().choices[0]
    done = [event for event in events if event.type == "tool_calls.function.arguments.done"]
    assert [(event.name, event.parsed_arguments) for event in done] == [
        ("Weather", Weather(city="Oslo", unit="c", days=3))
    ]
    assert final.finish_reason == "tool_calls" and final.message.tool_calls
    assert final.message.tool_calls[0].function.name == "Weather"


def test_thoughts() -> None:
    with sdk(f"<think>\nhm\n</think>\n\n{PING}", thinks=True) as client:
        message: Any = client.chat.completions.create(model="tiny", messages=HI, tools=TOOLS).choices[0].message
        assert message.reasoning_content == "hm" and message.tool_calls[0].function.name == "ping"
        stream = client.chat.completions.create(model="tiny", messages=HI, stream=True)
        deltas: Any = [chunk.choices[0].delta for chunk in stream]
        assert "".join(getattr(delta, "reasoning_content", None) or "" for delta in deltas) == "hm"
        assert "".join(delta.content or "" for delta in deltas) == PING
