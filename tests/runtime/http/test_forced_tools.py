"""Tools on an engine: drafts change no call (BUG-20), and calls that are asked for are made, whoever the model is."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from starlette.testclient import TestClient

from tandem.runtime.chat import ChatTemplate
from tandem.runtime.drafters.lookup import lookup_drafters
from tandem.runtime.engine import Engine
from tandem.runtime.http.app import build_app
from tandem.runtime.reading.formats import Format
from tandem.runtime.worker import Worker
from tests.fake_routers import EvenRouter, FreePrices
from tests.fakes import ScriptedExecutor, geometry
from tests.readings import function
from tests.service import IM_END, scripted_service

CHAT = "/v1/chat/completions"
CITY = {"enum": ["Oslo", "Rome"]}
TOOLS = [
    function("weather", city=CITY, days={"type": "integer", "minimum": 1, "maximum": 9}, sun={"type": "boolean"}),
    function("stop"),
]
TOOLS[0]["function"]["parameters"] |= {"required": ["city", "days", "sun"], "additionalProperties": False}
XML = (
    "<tool_call>\n<function=weather>\n<parameter=city>\nOslo\n</parameter>\n<parameter=days>\n3\n</parameter>\n"
    "<parameter=sun>\nTrue\n</parameter>\n</function>\n</tool_call>"
)


@contextmanager
def engine(script: Callable[[tuple[int, ...]], int] | None, min_order: int | None, **changes: Any) -> Iterator[Any]:
    """A client of an engine over a fake device; `min_order` is the lookup's, None: it has none."""
    executor = ScriptedExecutor(script, capacities=geometry(context_length=1600, vocab_size=IM_END + 1))
    drafters = None if min_order is None else lookup_drafters(min_order=min_order)
    router: Any = EvenRouter()
    made = Engine(executor, drafters=drafters, prices=FreePrices(), router=router)  # type: ignore[arg-type]
    worker = Worker(made)
    worker.start()
    try:
        with TestClient(build_app(scripted_service(worker, context_length=1600, **changes))) as client:
            yield client
    finally:
        worker.stop()


def chat(client: Any, said: str, **body: Any) -> dict[str, Any]:
    messages = [{"role": "user", "content": said}]
    reply = client.post(CHAT, json={"messages": messages, "tools": TOOLS, "max_tokens": 300} | body)
    assert reply.status_code == 200, reply.text
    return reply.json()["choices"][0]


def saying(text: str, behind: str = "assistant\n") -> Callable[[tuple[int, ...]], int]:
    """A model that answers with `text` behind the end of the prompt."""
    ids, header = [*text.encode(), IM_END], tuple(behind.encode())

    def script(seen: tuple[int, ...]) -> int:
        for begin in range(len(seen), len(header) - 1, -1):
            if seen[begin - len(header) : begin] == header:
                return ids[min(len(seen) - begin, len(ids) - 1)]
        return 0

    return script


def test_lookup_changes_no_call() -> None:
    """BUG-20: the schema stands in the prompt, and its words invite copies; every minimum gives the same calls."""
    answers = []
    for min_order in (None, 2, 4, 8):
        with engine(saying(f"{XML}\n{XML}"), min_order, call_format=Format.QWEN_XML) as client:
            answers.append([call["function"] for call in chat(client, XML)["message"]["tool_calls"]])
            accepted = client.get("/metrics").text.split("tandem:spec_decode_num_accepted_tokens_total{")[1]
            assert (float(accepted.split()[1]) > 100) == (min_order is not None)
    wanted = {"name": "weather", "arguments": '{"city": "Oslo", "days": 3, "sun": true}'}
    assert answers == [[wanted, wanted]] * 4


def arguments(call: dict[str, Any]) -> Any:
    return json.loads(call["function"]["arguments"])


@pytest.mark.parametrize("form", Format)
@pytest.mark.parametrize("min_order", [None, 2])
def test_a_call_that_is_asked_for_is_made(form: Format, min_order: int | None) -> None:
    """A model of noise: its calls are good, by the grammar alone."""
    named = {"type": "function", "function": {"name": "weather"}}
    with engine(None, min_order, call_format=form) as client:
        for said in ("a", "b", "c"):
            choice = chat(client, said, tool_choice=named)
            assert (choice["finish_reason"], choice["message"]["content"]) == ("tool_calls", None)
            (call,) = choice["message"]["tool_calls"]
            given = arguments(call)
            assert list(given) == ["city", "days", "sun"] and given["city"] in CITY["enum"]
            assert 1 <= given["days"] <= 9 and given["sun"] in (True, False)
            (call,) = chat(client, said, tool_choice="required", parallel_tool_calls=False)["message"]["tool_calls"]
            assert call["function"]["name"] in ("weather", "stop")


def test_drafts_change_no_forced_call() -> None:
    answers = []
    for min_order in (None, 2):
        with engine(None, min_order) as client:
            texts = [chat(client, said, tool_choice="required", temperature=1, seed=7) for said in ("ab" * 9, "cd")]
            answers.append([[call["function"] for call in one["message"]["tool_calls"]] for one in texts])
    assert answers[0] == answers[1]


def test_what_goes_against_a_forced_call() -> None:
    with engine(saying("no"), None) as client:
        body = {"messages": [{"role": "user", "content": "x"}], "tools": TOOLS, "tool_choice": "required"}
        error = client.post(CHAT, json=body | {"ignore_eos": True}).json()["error"]
        assert error["param"] == "ignore_eos"
        broken = function("f", a={"type": "integer", "minimum": 5, "maximum": 1})
        broken["function"]["parameters"]["required"] = ["a"]
        reply = client.post(CHAT, json=body | {"tools": [broken]})
        assert (reply.status_code, reply.json()["error"]["param"]) == (400, "tool_choice")


def test_more_tools_than_a_grammar_holds() -> None:
    with engine(None, None) as client:
        tools = [function(f"f{i}", a={"type": "string"}) for i in range(1000)]
        body = {"messages": [{"role": "user", "content": "x"}], "tools": tools, "tool_choice": "required"}
        error = client.post(CHAT, json=body).json()["error"]
    assert error["param"] == "tool_choice" and "at most 65536" in error["message"]


FORM = {"type": "json_schema", "json_schema": {"schema": {"type": "object", "properties": {"a": {"enum": [1, 2]}}}}}
FORM["json_schema"]["schema"] |= {"required": ["a"], "additionalProperties": False}  # type: ignore[index]
KNOWING = "{% if tools %}{{ tools | tojson }}{% endif %}{% for m in messages %}{{ m.content }}\n{% endfor %}Answer:"


@pytest.mark.parametrize("tools", [None, TOOLS])
@pytest.mark.parametrize("opened", [False, True])
def test_a_form_is_one_of_content(tools: Any, opened: bool) -> None:
    """Thoughts come before it, calls may come instead; the form is that of the whole answer where there are none."""
    tag, begin = ("<think>", "") if opened else ("", "<think>\n")
    template = ChatTemplate(KNOWING + tag)
    call = '<tool_call>\n{"name": "stop", "arguments": {}}\n</tool_call>'
    for text, content, num_calls in (
        ('{"a": 1}', '{"a": 1}', 0),
        (call, None, 1),
        ('{"b": 1}', None, 0),
    ):
        said = f"{begin}hm\n</think>\n\n{text}"
        with engine(saying(said, f"Answer:{tag}"), None, thinks=True, chat=template) as client:
            choice = chat(client, "x", tools=tools, response_format=FORM)
        message = choice["message"]
        assert message["reasoning_content"].startswith("hm")
        if num_calls and tools:
            assert (message["content"], len(message["tool_calls"])) == (None, 1)
        else:
            assert json.loads(message["content"])["a"] in (1, 2) and "tool_calls" not in message
            assert content is None or message["content"] == content


@pytest.mark.parametrize("name", ["structured_outputs", "guided_regex", "guided_grammar", "guided_choice"])
def test_every_kind_of_form_takes_thoughts_and_calls(name: str) -> None:
    asked: Any = {"structured_outputs": {"regex": "[ab]+"}, "guided_regex": "[ab]+", "guided_choice": ["aab", "b"]}
    asked["guided_grammar"] = 'start: ("a" | "b")~3'
    for said, content in (("<think>hm</think>aab", "aab"), ("aab", "aab")):
        with engine(saying(said), None, thinks=True) as client:
            message = chat(client, "x", **{name: asked[name]})["message"]
        assert message["content"] == content and message.get("reasoning_content") in (None, "hm")


def test_a_prompt_that_has_had_its_thoughts() -> None:
    template = ChatTemplate(KNOWING + "<think>\n\n</think>\n\n")

    def script(seen: tuple[int, ...]) -> int:
        return ord("<")  # wherever it may

    with engine(script, None, thinks=True, chat=template) as client:
        message = chat(client, "x", tools=None, response_format=FORM)["message"]
    assert json.loads(message["content"])["a"] in (1, 2) and "reasoning_content" not in message


@pytest.mark.parametrize(
    ("begun", "said", "thought", "content"),
    [
        ("<think>It cou", "ld be 4.</think>\n4", "ld be 4.", "4"),
        ("<think>It cou", 'ld be 4.</think>{"a": 2}', "ld be 4.", '{"a": 2}'),
        ("<think>It is.</think>So ", "it is 4", None, "it is 4"),
        ("So ", "it is 4", None, "it is 4"),
    ],
)
def test_an_answer_that_goes_on_with_its_thoughts(begun: str, said: str, thought: str | None, content: str) -> None:
    template = ChatTemplate("{% for m in messages %}{{ m.content }}{{ '' if loop.last else ';' }}{% endfor %}")
    messages = [{"role": "user", "content": "2+2"}, {"role": "assistant", "content": begun}]
    form = FORM if "{" in said else None
    with engine(saying(said, begun), None, thinks=True, chat=template) as client:
        body = {"messages": messages, "tools": None, "continue_final_message": True, "response_format": form}
        message = chat(client, "", **body)["message"]
    assert (message.get("reasoning_content"), message["content"]) == (thought, content)
