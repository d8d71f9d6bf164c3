"""Bodies of requests: what is honoured, with its types and bounds, and how a bad body is reported.

Knows nothing of engines; turning a body into a request for one is `prompts`' work.
"""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal, TypeVar

import msgspec
from msgspec import Meta, Struct

from tandem.errors import RequestError
from tandem.runtime.http.constraints import Constraints
from tandem.runtime.http.fields import check_fields
from tandem.runtime.text import TextRules
from tandem.runtime.thinking.budget import Effort

Count = Annotated[int, Meta(ge=1)]
TokenId = Annotated[int, Meta(ge=0, le=2**31 - 1)]
Stop = Annotated[str, Meta(min_length=1, max_length=4096)]
Choices = Annotated[int, Meta(ge=1, le=16)]
Alternatives = Annotated[int, Meta(ge=0, le=20)]


class StreamOptions(Struct, kw_only=True):
    """`include_obfuscation` is accepted and has no effect."""

    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None
    include_obfuscation: bool | None = None


class Body(Constraints, kw_only=True):
    """Fields that both endpoints honour. null stands for the default everywhere."""

    model: str | None = None
    n: Choices | None = None
    max_tokens: Count | None = None
    max_completion_tokens: Count | None = None
    temperature: Annotated[float, Meta(ge=0, le=2)] | None = None
    top_p: Annotated[float, Meta(gt=0, le=1)] | None = None
    top_k: Annotated[int, Meta(ge=-1, le=2**31 - 1)] | None = None
    min_p: Annotated[float, Meta(ge=0, le=1)] | None = None
    repetition_penalty: Annotated[float, Meta(ge=1e-6, le=1e6)] | None = None
    presence_penalty: Annotated[float, Meta(ge=-2, le=2)] | None = None
    frequency_penalty: Annotated[float, Meta(ge=-2, le=2)] | None = None
    no_repeat_ngram_size: Annotated[int, Meta(ge=0, le=2**31 - 1)] | None = None
    logit_bias: dict[str, Annotated[float, Meta(ge=-100, le=100)]] | None = None
    logprobs: bool | Alternatives | None = None
    top_logprobs: Alternatives | None = None
    prompt_logprobs: Alternatives | None = None
    min_tokens: Annotated[int, Meta(ge=0, le=2**31 - 1)] | None = None
    seed: Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)] | None = None
    stop: Stop | Annotated[list[Stop], Meta(max_length=16)] | None = None
    stop_token_ids: list[TokenId] | None = None
    include_stop_str_in_output: bool | None = None
    skip_special_tokens: bool | None = None
    ignore_eos: bool | None = None
    max_reasoning_tokens: Annotated[int, Meta(ge=0, le=2**31 - 1)] | None = None
    reasoning_effort: Effort | None = None
    add_special_tokens: bool | None = None
    truncate_prompt_tokens: Annotated[int, Meta(ge=-1)] | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None

    @property
    def text_rules(self) -> TextRules:
        stops = [self.stop] if isinstance(self.stop, str) else self.stop or []
        return TextRules(stops, bool(self.include_stop_str_in_output), self.skip_special_tokens is not False)

    @property
    def token_limit(self) -> int | None:
        return self.max_tokens if self.max_completion_tokens is None else self.max_completion_tokens


class CompletionBody(Body, kw_only=True):
    """`prompt` is a text, a list of texts, token ids, or a list of lists of them.

    `max_tokens` 0 asks for what is told of the prompt alone.
    """

    prompt: str | list[str | TokenId | list[TokenId]]
    max_tokens: Annotated[int, Meta(ge=0)] | None = None
    echo: bool | None = None
    best_of: Choices | None = None


class Part(Struct, kw_only=True):
    type: Literal["text"]
    text: str


class CalledFunction(Struct, kw_only=True):
    name: str
    arguments: str | dict[str, Any] | None = None


class ToolCall(Struct, kw_only=True):
    function: CalledFunction
    id: str | None = None
    type: Literal["function"] | None = None


class Message(Struct, kw_only=True):
    """One turn. What templates may read of earlier tool calls and thoughts is passed on to them."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | list[Part] | None = None
    name: str | None = None
    tool_calls: list[ToolCall] | None = None
    tool_call_id: str | None = None
    reasoning_content: str | None = None


class FunctionTool(Struct, kw_only=True):
    """`parameters` is a JSON schema of an object; null for a function without any."""

    name: Annotated[str, Meta(pattern=r"^[A-Za-z0-9_.-]{1,128}$(?!\n)")]
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class Tool(Struct, kw_only=True):
    type: Literal["function"]
    function: FunctionTool


class NamedFunction(Struct, kw_only=True):
    name: str


class ToolChoice(Struct, kw_only=True):
    type: Literal["function"]
    function: NamedFunction


Tools = Annotated[list[Tool], Meta(max_length=1024)]


class ChatBody(Body, kw_only=True):
    messages: Annotated[list[Message], Meta(min_length=1)]
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    tools: Tools | None = None
    tool_choice: Literal["none", "auto", "required"] | ToolChoice | None = None
    parallel_tool_calls: bool | None = None


AnyBody = TypeVar("AnyBody", bound=Struct)
_MISSING = re.compile(r"missing required field `([^`]+)`")
_PATH = re.compile(r" - at `\$\.?(.*)`$")


def read_body(data: bytes, kind: type[AnyBody]) -> AnyBody:
    """The body `data` as `kind`. Raises RequestError with the path of the first field that is wrong as `param`."""
    try:
        body = msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise RequestError(f"the body is not valid JSON: {error}", code="invalid_json") from error
    if not isinstance(body, dict):
        raise RequestError("the body must be a JSON object", code="invalid_json")
    check_fields(body, kind.__struct_fields__)
    try:
        return msgspec.convert(body, kind)
    except msgspec.ValidationError as error:
        raise _field_error(str(error)) from error


def _field_error(message: str) -> RequestError:
    """msgspec's `Expected ... - at $.messages[0].role` as an error that names `messages[0].role`."""
    path = _PATH.search(message)
    param = path.group(1) if path else ""
    if missing := _MISSING.search(message):
        param = f"{param}.{missing.group(1)}" if param else missing.group(1)
    text = _PATH.sub("", message)
    return RequestError(f"{param}: {text[:1].lower()}{text[1:]}" if param else text, param=param or None)
