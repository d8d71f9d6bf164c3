"""Thoughts over HTTP: budgets by field, by effort and by flag, what is refused, and what the usage counts."""

from __future__ import annotations

import json
import logging
from typing import Any

import pytest
from starlette.testclient import TestClient

from tandem.errors import UsageError
from tandem.runtime.chat import ChatTemplate
from tandem.runtime.engine import Engine
from tandem.runtime.http.app import build_app
from tandem.runtime.loading import LoadOptions, _thinking
from tandem.runtime.thinking.model import BARE_CLOSING, QWEN_CLOSING, thinking_model
from tests.exposition import value
from tests.fake_routers import EvenRouter, FreePrices
from tests.fakes import ScriptedExecutor
from tests.service import IM_END, TEMPLATE, ScriptedWorker, byte_tokenizer, scripted_service
from tests.thoughtful import CHAT, CHOICE, COMPLETIONS, HI, JSON_FORM, QWEN, answer, model, served, thoughts


@pytest.mark.parametrize("drafts", [True, False])
def test_a_budget_is_exact(drafts: bool) -> None:
    with served(drafts=drafts) as client:
        for budget in (1, 7, 8, 50):
            text, completion, reasoning = answer(client, max_reasoning_tokens=budget)
            assert thoughts(text) == budget and text[budget:] == QWEN_CLOSING + "yes"
            assert reasoning == budget + len(QWEN_CLOSING.rstrip()) and completion == len(text) + 1
        text, completion, reasoning = answer(client, max_reasoning_tokens=0)
        assert text == BARE_CLOSING + "yes" and reasoning == len(BARE_CLOSING.rstrip())
        assert value(client.get("/metrics").text, "tandem:thinking_closed_total", reason="budget") == 5
        text, completion, reasoning = answer(client)
        assert thoughts(text) == completion == reasoning == 200
        assert answer(client, COMPLETIONS, max_reasoning_tokens=5)[2] == 5 + len(QWEN_CLOSING.rstrip())


def test_efforts_are_shares_of_the_answer_and_the_smallest_budget_wins() -> None:
    with served() as client:
        for effort, budget in (("minimal", 20), ("low", 40), ("medium", 100), ("high", 160), ("xhigh", 190)):
            assert thoughts(answer(client, reasoning_effort=effort)[0]) == budget
        assert thoughts(answer(client, reasoning_effort="low", max_reasoning_tokens=39)[0]) == 39
        assert thoughts(answer(client, reasoning_effort="low", max_reasoning_tokens=41)[0]) == 40
        assert thoughts(answer(client, reasoning_effort="low", max_tokens=59)[0]) == 11
    with served(LoadOptions(think_budget=30, think_closing="|</think>")) as client:
        assert answer(client)[0][30:] == "|</think>yes"
        assert thoughts(answer(client, max_reasoning_tokens=31)[0]) == 30
        assert thoughts(answer(client, max_reasoning_tokens=29)[0]) == 29
        assert thoughts(answer(client, reasoning_effort="minimal")[0]) == 20


def test_effort_none_leaves_thoughts_out_where_the_template_can() -> None:
    with served() as client:
        assert answer(client, reasoning_effort="none") == ("yes", 4, 0)
        assert answer(client, chat_template_kwargs={"enable_thinking": False}, reasoning_effort="low") == ("yes", 4, 0)
        assert answer(client, COMPLETIONS, reasoning_effort="none")[0] == BARE_CLOSING + "yes"
    always = QWEN.replace("enable_thinking", "something_else")
    with served(template=always) as client:
        closing = BARE_CLOSING
        assert answer(client, reasoning_effort="none") == (closing + "yes", len(closing) + 4, len(closing.rstrip()))
        assert answer(client, max_reasoning_tokens=3)[0][3:] == BARE_CLOSING + "yes", "no phrase but Qwen's kind's"


def test_an_effort_reaches_a_template_that_reads_it() -> None:
    reads = QWEN + "{% if reasoning_effort is defined %}({{ reasoning_effort }}){% endif %}"
    worker = ScriptedWorker([[IM_END]])
    service = scripted_service(worker, chat=ChatTemplate(reads), thinking=thinking_model(reads, byte_tokenizer()))
    with TestClient(build_app(service)) as client:
        for body in ({"reasoning_effort": "low"}, {"chat_template_kwargs": {"reasoning_effort": "own"}}, {}):
            assert client.post(CHAT, json={"messages": HI, **body}).status_code == 200
    ends = [bytes(token for token in request.prompt if token < 256)[-8:] for request in worker.requests]
    assert ends == [b"k>\n(low)", b"k>\n(own)", b"<think>\n"]


def test_a_block_that_the_answer_opens() -> None:
    def opens(ids: tuple[int, ...]) -> int:
        said = bytes(token for token in ids if token < 256).split(b"assistant\n")[-1]
        return b"<think>"[len(said)] if len(said) < 7 else model(ids)

    template = TEMPLATE + "{# <think></think> #}"
    with served(template=template, script=opens) as client:
        text, _, reasoning = answer(client, max_reasoning_tokens=6)
        assert text == "<think>" + text[7:13] + BARE_CLOSING + "yes" and thoughts(text[7:]) == 6
        assert reasoning == 7 + 6 + len(BARE_CLOSING.rstrip())


def test_the_conductor_closes_loops_and_is_off_unless_asked() -> None:
    with served(LoadOptions(conductor="on")) as client:
        text, _, reasoning = answer(client)
        assert thoughts(text) == 128 and reasoning == 200, "the phrase is longer than what is left"
        assert thoughts(answer(client, max_reasoning_tokens=127)[0]) == 127
        page = client.get("/metrics").text
        for reason in ("pattern", "budget"):
            assert value(page, "tandem:thinking_closed_total", reason=reason) == 1
    with served(LoadOptions(conductor="raw")) as client:
        assert thoughts(answer(client)[0]) == 200


def test_streams_count_as_they_go_and_end_as_ever() -> None:
    options = {"include_usage": True, "continuous_usage_stats": True}
    with served() as client:
        body = {"messages": HI, "stream": True, "stream_options": options, "max_reasoning_tokens": 9}
        events = client.post(CHAT, json=body).text.split("\n\n")
    assert events[-2:] == ["data: [DONE]", ""]
    chunks = [json.loads(event.removeprefix("data: ")) for event in events[:-2]]
    usages = [chunk["usage"] for chunk in chunks]
    assert "completion_tokens_details" not in usages.pop(0), "nothing was made yet"
    counts = [usage["completion_tokens_details"]["reasoning_tokens"] for usage in usages]
    assert counts == sorted(counts) and counts[-1] == 9 + len(QWEN_CLOSING.rstrip())
    assert all(count <= usage["completion_tokens"] for count, usage in zip(counts, usages, strict=True))
    assert [c["finish_reason"] for chunk in chunks for c in chunk["choices"]][-1] == "stop"


def test_choices_have_budgets_of_their_own_and_one_usage() -> None:
    with served() as client:
        body = {"messages": HI, "max_tokens": 200, "max_reasoning_tokens": 9, "n": 3}
        reply = client.post(CHAT, json=body).json()
        texts = [choice["message"]["content"] for choice in reply["choices"]]
        assert [thoughts(text) for text in texts] == [9] * 3 and len(set(texts)) == 1
        reasoning = reply["usage"]["completion_tokens_details"]["reasoning_tokens"]
        assert reasoning == 3 * (9 + len(QWEN_CLOSING.rstrip())) <= reply["usage"]["completion_tokens"]


@pytest.mark.parametrize("drafts", [True, False])
def test_a_form_is_that_of_what_follows_the_thoughts(drafts: bool) -> None:
    with served(drafts=drafts) as client:
        for budget in (0, 12):
            text, _, reasoning = answer(client, max_reasoning_tokens=budget, guided_choice=["no way", "never"])
            closing = QWEN_CLOSING if budget else BARE_CLOSING
            assert thoughts(text) == budget and text[budget:] in (closing + "no way", closing + "never")
            assert reasoning == budget + len(closing.rstrip())
        form = {"guided_choice": ["no way", "never"], "reasoning_effort": "none"}
        assert answer(client, **form)[::2] in (("no way", 0), ("never", 0))


@pytest.mark.parametrize("drafts", [True, False])
@pytest.mark.parametrize("opened", [True, False])
def test_thoughts_that_are_parted_off_are_bounded_as_ever(drafts: bool, opened: bool) -> None:
    """The grammar of a chat knows of the block: a budget closes it within the grammar, whoever opened it."""

    def opens(ids: tuple[int, ...]) -> int:
        said = bytes(token for token in ids if token < 256).split(b"assistant\n")[-1]
        return b"<think>"[len(said)] if len(said) < 7 else model(ids)

    template, script = (QWEN, model) if opened else (TEMPLATE + "{# <think></think> #}", opens)
    with served(template=template, script=script, drafts=drafts, reads=True) as client:
        for form, wanted in (({}, {"yes"}), (JSON_FORM, {'{"a":1}', '{"a": 1}'}), (CHOICE, {"yes"})):
            for budget in (0, 1, 12):
                body = {"messages": HI, "max_tokens": 250, "max_reasoning_tokens": budget, **form}
                reply = client.post(CHAT, json=body).json()
                (choice,), usage = reply["choices"], reply["usage"]
                content, reasoning = choice["message"]["content"], choice["message"].get("reasoning_content") or ""
                closing = QWEN_CLOSING if budget and opened else BARE_CLOSING
                assert content in wanted and choice["finish_reason"] == "stop"
                assert thoughts(reasoning) == budget
                assert reasoning[budget:].strip() == closing.partition("</think>")[0].strip()
                count = usage["completion_tokens_details"]["reasoning_tokens"]
                assert count == (0 if opened else 7) + budget + len(closing.rstrip())


def test_bug_39_reasoning_ends_with_a_stop_text() -> None:
    """A stop in the thoughts, early in an accepted block: what was committed behind it is not counted."""
    with served() as client:
        for stop in ("ca", "limited"):
            text, completion, reasoning = answer(client, stop=stop, max_reasoning_tokens=30)
            assert completion == reasoning == len(text) + len(stop)


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"max_reasoning_tokens": 5}, "max_reasoning_tokens"),
        ({"max_reasoning_tokens": 0}, "max_reasoning_tokens"),
        ({"reasoning_effort": "low"}, "reasoning_effort"),
        ({"reasoning_effort": "low", "max_reasoning_tokens": 3}, "max_reasoning_tokens"),
    ],
)
def test_a_model_that_does_not_think_has_no_budget(body: dict[str, Any], param: str) -> None:
    worker = ScriptedWorker([[*b"one", IM_END]])
    with TestClient(build_app(scripted_service(worker))) as client:
        for path, given in ((CHAT, {"messages": HI}), (COMPLETIONS, {"prompt": "x"})):
            error = client.post(path, json=given | body)
            assert error.status_code == 400 and error.json()["error"]["param"] == param
            reply = client.post(path, json=given | {"reasoning_effort": "none"})
            assert reply.status_code == 200 and "completion_tokens_details" not in reply.json()["usage"]


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"max_reasoning_tokens": -1}, "max_reasoning_tokens"),
        ({"max_reasoning_tokens": 1.5}, "max_reasoning_tokens"),
        ({"max_reasoning_tokens": True}, "max_reasoning_tokens"),
        ({"reasoning_effort": "some"}, "reasoning_effort"),
        ({"reasoning_effort": 3}, "reasoning_effort"),
        ({"reasoning_effort": "none", "chat_template_kwargs": {"enable_thinking": True}}, "reasoning_effort"),
    ],
)
def test_what_is_refused(body: dict[str, Any], param: str) -> None:
    with served() as client:
        error = client.post(CHAT, json={"messages": HI} | body)
        assert error.status_code == 400 and error.json()["error"]["param"] == param


def test_flags_without_a_template_that_thinks_are_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    engine = Engine(ScriptedExecutor(), drafters=None, prices=FreePrices(), router=EvenRouter())
    with caplog.at_level(logging.WARNING):
        for template in (TEMPLATE, None):
            assert _thinking(template, byte_tokenizer(), LoadOptions(think_budget=0, conductor="on"), engine) is None
            assert _thinking(template, byte_tokenizer(), LoadOptions(), engine) is None
    for closing in ("", "so", "</think> so", "</think>x\n"):
        with pytest.raises(UsageError, match="--think-closing must end with </think>"):
            _thinking(QWEN, byte_tokenizer(), LoadOptions(think_closing=closing), engine)
    assert [record.getMessage().split(":")[0] for record in caplog.records] == ["--think-budget and --conductor"] * 2
