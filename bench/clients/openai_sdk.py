"""What people do with OpenAI's SDK, against a server. Argument: its URL. One line a check, the last one counts them.

A check fails when the answer is another than the one held here, or the SDK cannot read it. Exit code 1 if one fails.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Callable
from typing import Any, Literal

import openai
from pydantic import BaseModel

TALK: list[Any] = [{"role": "user", "content": "What is the capital of France?"}]
COUNT: list[Any] = [{"role": "user", "content": "Count from one to ten in words."}]
TOOL: Any = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather in a city",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string", "enum": ["Paris", "Rome"]}},
            "required": ["city"],
            "additionalProperties": False,
        },
    },
}


class Fact(BaseModel):
    """What a parsed answer is."""

    kind: Literal["city", "country"]
    certain: bool


class Checks:
    """Each public method is a check; `model` is what is served."""

    def __init__(self, url: str) -> None:
        options: Any = {"base_url": f"{url}/v1", "api_key": "unused", "max_retries": 0, "timeout": 120}
        self._client, self._options = openai.OpenAI(**options), options
        self.model = self._client.models.list().data[0].id

    def models(self) -> None:
        assert self._client.models.retrieve(self.model).id == self.model

    def chat(self) -> None:
        reply = self._chat(TALK)
        assert "Paris" in reply.choices[0].message.content and reply.choices[0].finish_reason == "stop"
        assert reply.usage.total_tokens == reply.usage.prompt_tokens + reply.usage.completion_tokens
        assert self._chat(TALK).choices[0].message.content == reply.choices[0].message.content
        assert reply._request_id, "the SDK shows x-request-id in its errors"

    def completions(self) -> None:
        given: Any = {"model": self.model, "prompt": "The capital of France is", "max_tokens": 4}
        assert self._client.completions.create(**given).choices[0].text.startswith(" Paris")

    def streams(self) -> None:
        whole = self._chat(COUNT, max_tokens=40)
        chunks = list(self._chat(COUNT, max_tokens=40, stream=True, stream_options={"include_usage": True}))
        *pieces, last = chunks
        assert last.choices == [] and last.usage == whole.usage
        assert "".join(c.choices[0].delta.content or "" for c in pieces) == whole.choices[0].message.content
        reasons = [c.choices[0].finish_reason for c in pieces]
        assert reasons == [None] * (len(pieces) - 1) + [whole.choices[0].finish_reason]

    def stream_helper(self) -> None:
        with self._client.chat.completions.stream(model=self.model, messages=TALK, max_tokens=20) as stream:
            text = "".join(event.delta for event in stream if event.type == "content.delta")
            assert stream.get_final_completion().choices[0].message.content == text != ""

    def a_stream_that_is_left(self) -> None:
        with self._chat(COUNT, stream=True) as stream:
            next(iter(stream))
        assert self._chat(TALK, max_tokens=1).usage.completion_tokens == 1

    def many_at_once(self) -> None:
        alone = [self._chat(talk, max_tokens=24).choices[0].message.content for talk in (TALK, COUNT)]

        async def ask() -> list[Any]:
            async with openai.AsyncOpenAI(**self._options) as client:
                calls = (
                    client.chat.completions.create(model=self.model, messages=talk, max_tokens=24)
                    for talk in (TALK, COUNT, TALK, COUNT)
                )
                return await asyncio.gather(*calls)

        assert [reply.choices[0].message.content for reply in asyncio.run(ask())] == [*alone, *alone]

    def async_streams(self) -> None:
        async def ask() -> str:
            async with openai.AsyncOpenAI(**self._options) as client:
                stream = await client.chat.completions.create(
                    model=self.model, messages=TALK, max_tokens=24, stream=True
                )
                return "".join([chunk.choices[0].delta.content or "" async for chunk in stream])

        assert asyncio.run(ask()) == self._chat(TALK, max_tokens=24).choices[0].message.content

    def seeds(self) -> None:
        given: Any = {"temperature": 1.0, "top_p": 0.95, "max_tokens": 24}
        texts = [self._chat(COUNT, seed=seed, **given).choices[0].message.content for seed in (7, 7, 8)]
        assert texts[0] == texts[1] != texts[2]

    def stops(self) -> None:
        choice = self._chat(COUNT, stop=["two"]).choices[0]
        assert choice.finish_reason == "stop" and "two" not in choice.message.content.lower()[-3:]

    def logprobs(self) -> None:
        choice = self._chat(TALK, logprobs=True, top_logprobs=3, max_tokens=8).choices[0]
        tokens = choice.logprobs.content
        assert b"".join(bytes(token.bytes) for token in tokens).decode().startswith(choice.message.content)
        assert all(len(t.top_logprobs) == 3 and t.logprob == t.top_logprobs[0].logprob <= 0 for t in tokens)

    def logit_bias(self) -> None:
        first = self._chat(TALK, max_tokens=1).choices[0].message.content
        said: Any = self._client.post("../tokenize", cast_to=object, body={"prompt": first})
        banned = self._chat(TALK, max_tokens=1, logit_bias={str(said["tokens"][0]): -100})
        assert banned.choices[0].message.content != first

    def choices(self) -> None:
        reply = self._chat(COUNT, n=3, temperature=1.0, seed=3, max_tokens=16)
        assert [choice.index for choice in reply.choices] == [0, 1, 2]
        assert len({choice.message.content for choice in reply.choices}) > 1

    def errors(self) -> None:
        for given, kind, param in (
            ({"temperature": 9}, openai.BadRequestError, "temperature"),
            ({"model": "another"}, openai.NotFoundError, "model"),
            ({"messages": []}, openai.BadRequestError, "messages"),
        ):
            try:
                self._client.chat.completions.create(**{"model": self.model, "messages": TALK, **given})
            except kind as error:
                assert error.param == param and error.request_id
            else:
                raise AssertionError(f"{given} was accepted")

    def parse_helper(self) -> None:
        helper = self._client.chat.completions.parse
        reply = helper(model=self.model, messages=TALK, response_format=Fact, max_tokens=60)
        assert isinstance(reply.choices[0].message.parsed, Fact)

    def json_object(self) -> None:
        reply = self._chat(TALK, response_format={"type": "json_object"}, max_tokens=200)
        if reply.choices[0].finish_reason == "stop":
            assert isinstance(json.loads(reply.choices[0].message.content), dict)

    def tools(self) -> None:
        named = {"type": "function", "function": {"name": "get_weather"}}
        for choice in ("required", named):
            reply = self._chat(TALK, tools=[TOOL], tool_choice=choice, max_tokens=80)
            for call in reply.choices[0].message.tool_calls:
                assert call.function.name == "get_weather" and call.id
                assert json.loads(call.function.arguments)["city"] in ("Paris", "Rome")

    def streamed_tools(self) -> None:
        given: Any = {"model": self.model, "messages": TALK, "tools": [TOOL], "tool_choice": "required"}
        with self._client.chat.completions.stream(**given, max_tokens=80) as stream:
            for _ in stream:
                pass
            (call, *_) = stream.get_final_completion().choices[0].message.tool_calls
        whole = self._client.chat.completions.create(**given, max_tokens=80).choices[0].message.tool_calls[0]
        assert (call.function.name, call.function.arguments) == (whole.function.name, whole.function.arguments)

    def tool_answers(self) -> None:
        call: Any = {"id": "call_1", "type": "function", "function": {"name": "get_weather", "arguments": "{}"}}
        turns = [{"role": "assistant", "content": None, "tool_calls": [call]}]
        result = {"role": "tool", "tool_call_id": "call_1", "content": "sunny, 20 degrees"}
        assert self._chat([*TALK, *turns, result], max_tokens=8).choices[0].message.content is not None

    def _chat(self, messages: list[Any], **given: Any) -> Any:
        return self._client.chat.completions.create(model=self.model, messages=messages, **given)


def outcome(check: Callable[[], None]) -> str:
    try:
        check()
    except openai.BadRequestError as error:
        return f"refused: {error.message[:200]}"
    except Exception as error:
        return f"FAILED: {type(error).__name__}: {str(error)[:300]}"
    return "ok"


def main(url: str) -> int:
    checks = Checks(url)
    names = [name for name in vars(Checks) if not name.startswith("_")]
    outcomes = {name: outcome(getattr(checks, name)) for name in names}
    for name, said in outcomes.items():
        print(f"{name:24}{said}")
    bad = [name for name, said in outcomes.items() if said != "ok"]
    print(f"{len(names) - len(bad)} of {len(names)} checks hold" + (f"; not: {', '.join(bad)}" if bad else ""))
    return int(bool(bad))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
