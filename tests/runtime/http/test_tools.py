"""Tools and thoughts over HTTP: what templates are given, what bodies are refused, and how answers are worded."""

from __future__ import annotations

import json
from typing import Any

import pytest
from starlette.testclient import TestClient
from tokenizers import AddedToken

from tandem.runtime.chat import ChatTemplate
from tandem.runtime.http.app import build_app
from tandem.runtime.reading.formats import Format
from tests.readings import function
from tests.service import IM_END, ScriptedWorker, byte_tokenizer, scripted_service

CHAT = "/v1/chat/completions"
HI = [{"role": "user", "content": "hi"}]
TOOLS = [function("find", text={"type": "string"}, limit={"type": "integer"}), function("ping")]
KNOWING = (
    "{% if tools is not none %}[{% for tool in tools %}{{ tool | tojson }}{% endfor %}]{% endif %}"
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}"
    "{% for call in m.tool_calls or [] %}{{ call.function.name }}({{ call.function.arguments | items | list }})"
    "{% endfor %}"
    "{% if m.tool_call_id %} for {{ m.tool_call_id }}{% endif %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% if enable_thinking %}<think>\n{% endif %}{% endif %}"
)
CALL = '<tool_call>\n{"name": "find", "arguments": {"text": "a", "limit": 3}}\n</tool_call>'


def rounds(text: str, size: int = 5) -> list[list[int]]:
    ids = [*text.encode(), IM_END]
    return [ids[start : start + size] for start in range(0, len(ids), size)]


def post(worker: ScriptedWorker, body: dict[str, Any], path: str = CHAT, **changes: Any) -> Any:
    changes = {"context_length": 4000, "chat": ChatTemplate(KNOWING)} | changes
    with TestClient(build_app(scripted_service(worker, **changes)), raise_server_exceptions=False) as client:
        return client.post(path, json={"messages": HI} | body)


def answered(text: str, *, size: int = 5, service: Any = None, **body: Any) -> dict[str, Any]:
    """The choice that a model's `text` becomes, the same whole and streamed in rounds of `size` tokens."""
    service = service or {}
    reply = post(ScriptedWorker(rounds(text, size)), {"tools": TOOLS} | body, **service)
    assert reply.status_code == 200, reply.text
    (choice,) = reply.json()["choices"]
    given = post(ScriptedWorker(rounds(text, size)), {"tools": TOOLS, "stream": True} | body, **service)
    streamed = assembled([json.loads(line[6:]) for line in given.text.split("\n\n") if line.startswith("data: {")])
    message = choice["message"]
    calls = [(call["type"], call["function"]) for call in message.get("tool_calls", [])]
    assert streamed["calls"] == calls
    assert streamed["content"] == (message["content"] or "")
    assert streamed["reasoning"] == message.get("reasoning_content", "")
    assert streamed["reason"] == choice["finish_reason"]
    return choice


def assembled(chunks: list[Any]) -> dict[str, Any]:
    """The message that a stream's chunks add up to; the form of its deltas is checked here."""
    found: dict[str, Any] = {"content": "", "reasoning": "", "calls": [], "reason": None}
    ids = set()
    for chunk in chunks:
        (choice,) = chunk["choices"]
        assert found["reason"] is None, "the finish reason comes last"
        found["reason"], delta = choice["finish_reason"], choice["delta"]
        assert delta or found["reason"], "a chunk that says nothing"
        found["content"] += delta.get("content", "")
        found["reasoning"] += delta.get("reasoning_content", "")
        for piece in delta.get("tool_calls", []):
            if "id" in piece:
                assert piece["index"] == len(found["calls"]) and piece["id"].startswith("call_")
                ids.add(piece["id"])
                found["calls"].append((piece["type"], {"name": piece["function"]["name"], "arguments": ""}))
            else:
                assert set(piece) == {"index", "function"} and set(piece["function"]) == {"arguments"}
            found["calls"][piece["index"]][1]["arguments"] += piece["function"]["arguments"]
    assert len(ids) == len(found["calls"])
    return found


@pytest.mark.parametrize("size", [1, 7, 1000])
def test_calls(size: int) -> None:
    choice = answered(f"{CALL}\n{CALL}", size=size)
    first, second = choice["message"]["tool_calls"]
    assert first["id"] != second["id"] and first["id"].startswith("call_")
    assert first["function"] == {"name": "find", "arguments": '{"text": "a", "limit": 3}'} == second["function"]
    assert (choice["message"]["content"], choice["finish_reason"]) == (None, "tool_calls")


def test_content_beside_calls() -> None:
    choice = answered(f"so: {CALL} done")
    assert (choice["message"]["content"], choice["finish_reason"]) == ("so: done", "tool_calls")


@pytest.mark.parametrize("size", [1, 7, 1000])
def test_an_answer_without_calls_is_what_it_was(size: int) -> None:
    for text in ("plain < text\n", "", '<tool_call>{"name": "other"}</tool_call>'):
        choice = answered(text, size=size)
        assert choice["message"] == {"role": "assistant", "content": text, "refusal": None}
        assert choice["finish_reason"] == "stop"


def test_other_formats() -> None:
    xml = "<tool_call>\n<function=find>\n<parameter=limit>\n3\n</parameter>\n</function>\n</tool_call>"
    for text, form in ((xml, Format.QWEN_XML), ('{"name": "find", "parameters": {"limit": 3}}', Format.LLAMA)):
        (call,) = answered(text, service={"call_format": form})["message"]["tool_calls"]
        assert call["function"] == {"name": "find", "arguments": '{"limit": 3}'}


def test_no_tools_no_calls() -> None:
    for body in ({"tools": None}, {"tools": []}, {"tool_choice": "none"}):
        choice = answered(CALL, **body)
        assert (choice["message"]["content"], choice["finish_reason"]) == (CALL, "stop")
        assert "tool_calls" not in choice["message"]


def test_only_one_call() -> None:
    """The answer ends with its first call, and counts no token behind the one that closed it."""
    for size in (1, 1000):
        choice = answered(f"a {CALL}{CALL}", size=size, parallel_tool_calls=False)
        assert (len(choice["message"]["tool_calls"]), choice["finish_reason"]) == (1, "tool_calls")
    reply = post(ScriptedWorker(rounds(CALL + CALL, 9)), {"tools": TOOLS, "parallel_tool_calls": False}).json()
    assert reply["usage"]["completion_tokens"] == CALL.index("}}") + 2


def test_a_call_that_is_cut() -> None:
    """BUG-51: `length` wins, and half a call does not pass for a whole one."""
    choice = answered(CALL, max_tokens=CALL.index(', "limit'))
    assert choice["finish_reason"] == "length"
    (call,) = choice["message"]["tool_calls"]
    assert call["function"]["arguments"] == '{"text": "a"'
    (call,) = answered(CALL, stop=['", "limit'])["message"]["tool_calls"]
    assert call["function"]["arguments"] == '{"text": "a'
    (call,) = answered(CALL[: CALL.index(', "limit')])["message"]["tool_calls"]
    assert call["function"]["arguments"] == '{"text": "a"}', "the model itself ended it"


def test_several_choices() -> None:
    reply = post(ScriptedWorker(rounds(CALL)), {"tools": TOOLS, "n": 3, "temperature": 1}).json()
    assert len({choice["message"]["tool_calls"][0]["id"] for choice in reply["choices"]}) == 3
    assert {choice["finish_reason"] for choice in reply["choices"]} == {"tool_calls"}


def test_logprobs_are_one_a_token() -> None:
    body = {"tools": TOOLS, "logprobs": True}
    whole = post(ScriptedWorker(rounds(CALL)), body).json()
    tokens = [token["token"] for token in whole["choices"][0]["logprobs"]["content"]]
    assert "".join(tokens) == CALL + "<|im_end|>" and len(tokens) == whole["usage"]["completion_tokens"]
    given = post(ScriptedWorker(rounds(CALL)), body | {"stream": True}).text
    chunks = [json.loads(line[6:])["choices"][0] for line in given.split("\n\n") if line.startswith("data: {")]
    assert [t["token"] for c in chunks if c["logprobs"] for t in c["logprobs"]["content"]] == tokens


def thinking(text: str, **body: Any) -> dict[str, Any]:
    return answered(text, service={"thinks": True}, **body)


@pytest.mark.parametrize("tools", [None, TOOLS])
def test_thoughts(tools: Any) -> None:
    choice = thinking("<think>\nhm\n</think>\n\nhello", tools=tools)
    message = {"role": "assistant", "content": "hello", "refusal": None, "reasoning_content": "hm"}
    assert choice["message"] == message
    opened = {"enable_thinking": True}
    assert thinking("hm\n</think>\n\nhello", tools=tools, chat_template_kwargs=opened)["message"] == message
    assert thinking("hm\n</think>", tools=tools)["message"]["content"] == "hm\n</think>"
    cut = thinking("<think>\nhm</think>x", tools=tools, max_tokens=10)
    assert (cut["message"]["content"], cut["message"]["reasoning_content"]) == (None, "hm")
    assert cut["finish_reason"] == "length"


def test_thoughts_before_a_call() -> None:
    choice = thinking(f"<think>\n{CALL}\n</think>\n\n{CALL}")
    assert choice["message"]["reasoning_content"] == CALL and choice["message"]["content"] is None
    assert len(choice["message"]["tool_calls"]) == 1


def test_markers_that_are_special_tokens() -> None:
    """They are seen where they are read, and nowhere shown."""
    tokenizer = byte_tokenizer()
    markers = ["<tool_call>", "</tool_call>", "<think>", "</think>"]
    tokenizer.add_special_tokens([AddedToken(marker, special=True) for marker in markers])
    text = f"<think>hm</think>a <tool_call>no</tool_call> {CALL}"
    ids = [*tokenizer.encode(text, add_special_tokens=False).ids, IM_END]
    assert len(ids) == len(text) + 1 - sum(text.count(marker) * (len(marker) - 1) for marker in markers)
    for body, wanted in (({"tools": TOOLS}, ("a no", "hm", 1)), ({}, ("a no " + CALL[11:-12], "hm", 0))):
        reply = post(ScriptedWorker([ids]), body, tokenizer=tokenizer, thinks=True).json()
        message = reply["choices"][0]["message"]
        assert (message["content"], message["reasoning_content"], len(message.get("tool_calls", []))) == wanted


def prompt(body: dict[str, Any], template: str | None = None, **changes: Any) -> str:
    worker = ScriptedWorker(rounds("x"))
    chat = ChatTemplate(template or KNOWING)
    reply = post(worker, body, chat=chat, **changes)
    assert reply.status_code == 200, reply.text
    ids = worker.requests[-1].prompt
    counted = post(worker, {k: v for k, v in body.items() if k in ("messages", "tools")}, "/tokenize", chat=chat)
    assert counted.json()["tokens"] == list(ids) or "tool_choice" in body
    return byte_tokenizer().decode(list(ids), skip_special_tokens=False)


def test_templates_are_given_tools_as_they_came() -> None:
    tool = {"function": {"parameters": {"type": "object"}, "name": "f", "strict": True}, "type": "function"}
    shown = '[{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}]'
    assert prompt({"tools": [tool]}).startswith(f"{shown}<|im_start|>user\nhi<|im_end|>")
    for body in ({"tools": [tool], "tool_choice": "none"}, {"tools": []}, {}):
        assert prompt(body).startswith("<|im_start|>user")


def call(arguments: Any, name: str = "find", id: str = "call_1") -> dict[str, Any]:
    return {"id": id, "type": "function", "function": {"name": name, "arguments": arguments}}


def test_earlier_calls_go_to_the_template_as_objects() -> None:
    history = [
        *HI,
        {"role": "assistant", "content": None, "tool_calls": [call('{"text": "a", "limit": 3}'), call("", "ping")]},
        {"role": "tool", "tool_call_id": "call_1", "content": [{"type": "text", "text": "found"}]},
    ]
    text = prompt({"messages": history, "tools": TOOLS})
    assert "assistant\nfind([('text', 'a'), ('limit', 3)])ping([])<|im_end|>" in text
    assert "tool\nfound for call_1<|im_end|>" in text
    empty = [*HI, {"role": "assistant", "content": "a", "tool_calls": []}]
    assert prompt({"messages": empty}).count("a<|im_end|>") == 1


TELLING = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"


def test_a_template_that_knows_no_tools_gets_them_as_text() -> None:
    history = [
        {"role": "system", "content": "Be brief."},
        *HI,
        {"role": "assistant", "content": "yes", "tool_calls": [call('{"text": "a"}')]},
        {"role": "tool", "tool_call_id": "call_1", "content": "found"},
    ]
    text = prompt({"messages": history, "tools": TOOLS}, TELLING)
    assert text.startswith("system: Be brief.\n\nYou may call") and json.dumps(TOOLS[0]) in text
    assert 'assistant: yes\n<tool_call>\n{"name": "find", "arguments": {"text": "a"}}\n</tool_call>\n' in text
    assert text.endswith("user: <tool_response>\nfound\n</tool_response>\n")
    assert prompt({"tools": TOOLS}, TELLING).startswith("system: You may call")
    assert prompt({}, TELLING) == "user: hi\n"


def test_a_template_that_knows_one_call_a_message_gets_them_one_by_one() -> None:
    single = "{# single tool-calls #}{% if tools %}{% endif %}{% for m in messages %}{{ m.role }}:{{ m.content }}" + (
        "{% for c in m.tool_calls or [] %}{{ c.function.name }}{% endfor %}; {% endfor %}"
    )
    history = [
        *HI,
        {"role": "assistant", "content": "so", "tool_calls": [call("{}", "a", "1"), call("{}", "b", "2")]},
        {"role": "tool", "tool_call_id": "2", "content": "two"},
        {"role": "tool", "tool_call_id": "1", "content": "one"},
        {"role": "user", "content": "and"},
        {"role": "assistant", "tool_calls": [call("{}", "c", "3"), call("{}", "d", "4")]},
    ]
    text = prompt({"messages": history}, single)
    assert text == "user:hi; assistant:b; tool:two; assistant:soa; tool:one; user:and; assistant:c; assistant:d; "


DEEP: dict[str, Any] = {}
for _ in range(40):
    DEEP = {"anyOf": [DEEP]}


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"tools": [function("a", b=DEEP)]}, "tools[0].function.parameters"),
        ({"tools": {}}, "tools"),
        ({"tools": [{"type": "web_search"}]}, "tools[0].type"),
        ({"tools": [{"type": "function"}]}, "tools[0].function"),
        ({"tools": [function("a b")]}, "tools[0].function.name"),
        ({"tools": [function("a"), function("a")]}, "tools[1].function.name"),
        (
            {"tools": [{"type": "function", "function": {"name": "a", "parameters": [1]}}]},
            "tools[0].function.parameters",
        ),
        (
            {"tools": [{"type": "function", "function": {"name": "a", "parameters": {"type": "string"}}}]},
            "tools[0].function.parameters.type",
        ),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tool_choice": {"type": "function", "function": {"name": "a"}}}, "tool_choice"),
        ({"tools": TOOLS, "tool_choice": "any"}, "tool_choice"),
        ({"tools": TOOLS, "tool_choice": {"type": "function", "function": {"name": "a"}}}, "tool_choice.function.name"),
        ({"tools": TOOLS, "parallel_tool_calls": 1}, "parallel_tool_calls"),
        ({"functions": [{"name": "a"}]}, "functions"),
        ({"chat_template_kwargs": {"tools": []}}, "chat_template_kwargs.tools"),
        ({"messages": [{"role": "assistant", "tool_calls": []}]}, "messages[0].content"),
        ({"messages": [{"role": "assistant", "tool_calls": [{"id": "1"}]}]}, "messages[0].tool_calls[0].function"),
    ],
)
def test_what_is_refused(body: dict[str, Any], param: str) -> None:
    reply = post(ScriptedWorker(rounds("x")), body)
    assert (reply.status_code, reply.json()["error"]["param"]) == (400, param), reply.text
