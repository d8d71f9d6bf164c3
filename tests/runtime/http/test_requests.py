"""Bodies in, errors out: what each endpoint honours, refuses and says of it, in OpenAI's words."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

import pytest
from starlette.testclient import TestClient

from tandem.runtime.http import fields
from tandem.runtime.http.app import build_app
from tandem.runtime.request import Penalties, Request, Sampling
from tests.service import CONTEXT_LENGTH, IM_END, IM_START, ScriptedWorker, scripted_service

COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"
HI = [{"role": "user", "content": "hi"}]
HI_IDS = (IM_START, *b"user\nhi", IM_END, *b"\n", IM_START, *b"assistant\n")


@pytest.fixture
def worker() -> ScriptedWorker:
    return ScriptedWorker([list(b"one "), list(b"two"), [IM_END]])


@pytest.fixture
def client(worker: ScriptedWorker) -> Iterator[TestClient]:
    with TestClient(build_app(scripted_service(worker)), raise_server_exceptions=False) as client:
        yield client


def asked(client: TestClient, worker: ScriptedWorker, path: str = COMPLETIONS, **body: Any) -> Request:
    """What the engine was asked for by `body`."""
    body = ({"messages": HI} if path == CHAT else {"prompt": "hi"}) | body
    response = client.post(path, json=body)
    assert response.status_code == 200, response.text
    return worker.requests[-1]


def refused(client: TestClient, path: str = COMPLETIONS, status: int = 400, **body: Any) -> dict[str, Any]:
    """The error object that `body` gets."""
    body = ({"messages": HI} if path == CHAT else {"prompt": "hi"}) | body
    response = client.post(path, json=body)
    assert response.status_code == status, response.text
    error = response.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    return error


def test_every_form_of_a_prompt(client: TestClient, worker: ScriptedWorker) -> None:
    for prompt in ("hi", ["hi"], list(b"hi"), [list(b"hi")]):
        assert asked(client, worker, prompt=prompt).prompt == tuple(b"hi")
    for prompts in (["a", "hi"], [list(b"a"), list(b"hi")]):
        asked(client, worker, prompt=prompts)
        assert [request.prompt for request in worker.requests[-2:]] == [tuple(b"a"), tuple(b"hi")]


@pytest.mark.parametrize("prompt", [[], [[]], "", ["a", 1], [1, [2]], ["a", [1]]])
def test_no_prompt_and_several_kinds_of_it(client: TestClient, prompt: Any) -> None:
    assert refused(client, prompt=prompt)["param"] == "prompt"


def test_a_chat_is_rendered_and_encoded_once(client: TestClient, worker: ScriptedWorker) -> None:
    """BUG-52: the markers of the template and no others."""
    assert asked(client, worker, CHAT).prompt == HI_IDS
    parts = [{"role": "user", "content": [{"type": "text", "text": "h"}, {"type": "text", "text": "i"}]}]
    assert asked(client, worker, CHAT, messages=parts).prompt == (*HI_IDS[:6], *b"h\ni", *HI_IDS[8:])
    open_end = asked(client, worker, CHAT, add_generation_prompt=False)
    assert open_end.prompt == HI_IDS[:10]
    assert asked(client, worker, CHAT, add_special_tokens=True).prompt == HI_IDS, "this tokenizer adds none"


def test_an_answer_goes_on_with_the_last_message(client: TestClient, worker: ScriptedWorker) -> None:
    turns = [*HI, {"role": "assistant", "content": "so it "}]
    for opened in (None, False):
        given = asked(client, worker, CHAT, messages=turns, continue_final_message=True, add_generation_prompt=opened)
        assert given.prompt == (*HI_IDS, *b"so it ")
    assert asked(client, worker, CHAT, continue_final_message=True).prompt == HI_IDS[:8]
    error = refused(client, CHAT, continue_final_message=True, add_generation_prompt=True)
    assert error["param"] == "continue_final_message"


def test_a_prompt_is_cut_to_its_end(client: TestClient, worker: ScriptedWorker) -> None:
    assert asked(client, worker, prompt="abcdef", truncate_prompt_tokens=3).prompt == tuple(b"def")
    assert asked(client, worker, prompt=["abc", "d"], truncate_prompt_tokens=2).prompt == tuple(b"d")
    assert worker.requests[-2].prompt == tuple(b"bc")
    assert asked(client, worker, CHAT, truncate_prompt_tokens=4).prompt == HI_IDS[-4:]
    assert len(asked(client, worker, prompt="x" * 300, truncate_prompt_tokens=-1).prompt) == CONTEXT_LENGTH - 1
    assert refused(client, truncate_prompt_tokens=0)["param"] == "prompt"
    reply = client.post(COMPLETIONS, json={"prompt": "abcdef", "truncate_prompt_tokens": 3, "echo": True}).json()
    assert reply["choices"][0]["text"] == "defone two", "an echo is what was read"


@pytest.mark.parametrize("name", ["self", "source", "variables", "given", "raise_exception", "a b", ""])
def test_a_template_variable_may_have_any_name(client: TestClient, worker: ScriptedWorker, name: str) -> None:
    assert asked(client, worker, CHAT, chat_template_kwargs={name: 1}).prompt == HI_IDS


def test_sampling_is_greedy_unless_asked(client: TestClient, worker: ScriptedWorker) -> None:
    assert asked(client, worker).sampling == Sampling(temperature=0.0)
    given = {"temperature": 1, "top_p": 0.5, "top_k": 7, "min_p": 0.1, "seed": -5}
    assert asked(client, worker, **given).sampling == Sampling(1.0, 0.5, 7, 0.1, -5)
    assert asked(client, worker, CHAT, top_k=-1).sampling.top_k == 0


def test_penalties_change_nothing_unless_asked(client: TestClient, worker: ScriptedWorker) -> None:
    assert asked(client, worker).penalties == Penalties()
    given = {
        "repetition_penalty": 1.5, "presence_penalty": -2, "frequency_penalty": 0.5, "no_repeat_ngram_size": 3,
        "logit_bias": {"65": -100, "7": 1.5}, "min_tokens": 4,
    }  # fmt: skip
    assert asked(client, worker, CHAT, **given).penalties == Penalties(1.5, -2, 0.5, 3, ((65, -100), (7, 1.5)), 4)


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"repetition_penalty": 0}, "repetition_penalty"),
        ({"presence_penalty": 2.5}, "presence_penalty"),
        ({"frequency_penalty": -3}, "frequency_penalty"),
        ({"no_repeat_ngram_size": -1}, "no_repeat_ngram_size"),
        ({"logit_bias": {"x": 1}}, "logit_bias"),
        ({"logit_bias": {"-1": 1}}, "logit_bias"),
        ({"logit_bias": [1]}, "logit_bias"),
        ({"min_tokens": -1}, "min_tokens"),
    ],
)
def test_penalties_out_of_range(client: TestClient, body: dict[str, Any], param: str) -> None:
    assert refused(client, **body)["param"] == param


def test_logprobs_are_a_flag_of_chats_and_a_count_of_completions(client: TestClient, worker: ScriptedWorker) -> None:
    assert asked(client, worker).logprobs is None and asked(client, worker, logprobs=False).logprobs is None
    assert [asked(client, worker, logprobs=n).logprobs for n in (0, 5, 20)] == [0, 5, 20]
    assert asked(client, worker, CHAT, logprobs=False, top_logprobs=0).logprobs is None
    assert asked(client, worker, CHAT, logprobs=True).logprobs == 0
    assert asked(client, worker, CHAT, logprobs=True, top_logprobs=7).logprobs == 7


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        (COMPLETIONS, {"logprobs": True}, "logprobs"),
        (COMPLETIONS, {"logprobs": 21}, "logprobs"),
        (COMPLETIONS, {"logprobs": 2, "top_logprobs": 2}, "top_logprobs"),
        (CHAT, {"logprobs": 3}, "logprobs"),
        (CHAT, {"logprobs": 0}, "logprobs"),
        (CHAT, {"logprobs": 1}, "logprobs"),
        (CHAT, {"top_logprobs": 3}, "top_logprobs"),
        (CHAT, {"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
    ],
)
def test_logprobs_in_the_other_endpoints_form(client: TestClient, path: str, body: dict[str, Any], param: str) -> None:
    assert refused(client, path, **body)["param"] == param


def test_budgets(client: TestClient, worker: ScriptedWorker) -> None:
    assert asked(client, worker).max_tokens == 16
    assert asked(client, worker, CHAT).max_tokens == CONTEXT_LENGTH - len(HI_IDS)
    assert asked(client, worker, CHAT, max_tokens=9).max_tokens == 9
    assert asked(client, worker, CHAT, max_tokens=9, max_completion_tokens=8).max_tokens == 8
    assert asked(client, worker, max_tokens=100_000).max_tokens == CONTEXT_LENGTH - 2


def test_stop_ids(client: TestClient, worker: ScriptedWorker) -> None:
    assert asked(client, worker).stop_ids == {IM_END}
    assert asked(client, worker, stop_token_ids=[65]).stop_ids == {IM_END, 65}
    assert asked(client, worker, ignore_eos=True).stop_ids == set()


def test_null_is_the_default(client: TestClient, worker: ScriptedWorker) -> None:
    names = ["temperature", "top_p", "stop", "max_tokens", "seed", "stream", "stream_options", "model", "tools", "n"]
    assert asked(client, worker, CHAT, **dict.fromkeys(names)) == asked(client, worker, CHAT)


def test_a_prompt_longer_than_the_context(client: TestClient) -> None:
    for path, body, length in (
        (COMPLETIONS, {"prompt": "x" * 300}, 300),
        (COMPLETIONS, {"prompt": "x" * CONTEXT_LENGTH}, CONTEXT_LENGTH),
        (CHAT, {"messages": [{"role": "user", "content": "x" * 300}]}, 300 + len(HI_IDS) - 2),
    ):
        error = refused(client, path, **body)
        assert error["code"] == "context_length_exceeded"
        assert str(length) in error["message"] and str(CONTEXT_LENGTH) in error["message"]


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        (COMPLETIONS, {"temperature": "hot"}, "temperature"),
        (COMPLETIONS, {"temperature": 2.5}, "temperature"),
        (COMPLETIONS, {"top_p": 0}, "top_p"),
        (COMPLETIONS, {"min_p": 1.5}, "min_p"),
        (COMPLETIONS, {"top_k": -2}, "top_k"),
        (COMPLETIONS, {"seed": 2**63}, "seed"),
        (COMPLETIONS, {"max_tokens": 0}, "max_tokens"),
        (COMPLETIONS, {"max_tokens": True}, "max_tokens"),
        (COMPLETIONS, {"stop": ""}, "stop"),
        (COMPLETIONS, {"stop": ["a", 2]}, "stop[1]"),
        (COMPLETIONS, {"stop": ["a"] * 17}, "stop"),
        (COMPLETIONS, {"stop": ["a", "b" * 4097]}, "stop[1]"),
        (COMPLETIONS, {"prompt": None}, "prompt"),
        (COMPLETIONS, {"prompt": ["a", "", "b"]}, "prompt[1]"),
        (COMPLETIONS, {"prompt": [[1], [2] * CONTEXT_LENGTH]}, "prompt[1]"),
        (COMPLETIONS, {"prompt": [[1]] * 1025}, "prompt"),
        (COMPLETIONS, {"n": 0}, "n"),
        (COMPLETIONS, {"n": 17}, "n"),
        (CHAT, {"n": 17}, "n"),
        (CHAT, {"n": True}, "n"),
        (COMPLETIONS, {"best_of": True}, "best_of"),
        (COMPLETIONS, {"best_of": 17}, "best_of"),
        (COMPLETIONS, {"n": 3, "best_of": 2}, "best_of"),
        (COMPLETIONS, {"n": 2, "best_of": 3, "stream": True}, "best_of"),
        (CHAT, {"best_of": 2}, "best_of"),
        (COMPLETIONS, {"prompt": [[1, "2"]]}, "prompt[0][1]"),
        (COMPLETIONS, {"stream": 1}, "stream"),
        (COMPLETIONS, {"stream_options": {"include_usage": True}}, "stream_options"),
        (CHAT, {"messages": []}, "messages"),
        (CHAT, {"messages": [{"content": "x"}]}, "messages[0].role"),
        (CHAT, {"messages": [{"role": "user", "content": 3}]}, "messages[0].content"),
        (CHAT, {"messages": [{"role": "pirate", "content": "x"}]}, "messages[0].role"),
        (CHAT, {"messages": [*HI, {"role": "user"}]}, "messages[1].content"),
        (CHAT, {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "messages[0].content[0].type"),
        (CHAT, {"chat_template_kwargs": {"messages": []}}, "chat_template_kwargs.messages"),
        (COMPLETIONS, {"truncate_prompt_tokens": -2}, "truncate_prompt_tokens"),
        (COMPLETIONS, {"skip_special_tokens": 0}, "skip_special_tokens"),
        (CHAT, {"include_stop_str_in_output": "yes"}, "include_stop_str_in_output"),
    ],
)
def test_a_wrong_field_is_named(client: TestClient, path: str, body: dict[str, Any], param: str) -> None:
    error = refused(client, path, **body)
    assert (error["type"], error["param"]) == ("invalid_request_error", param)


def test_a_missing_field_is_named(client: TestClient) -> None:
    for path, param in ((COMPLETIONS, "prompt"), (CHAT, "messages")):
        response = client.post(path, json={"model": "tiny"})
        assert (response.status_code, response.json()["error"]["param"]) == (400, param)


@pytest.mark.parametrize(
    "body", [b"", b"{", b"[1]", b'"x"', b'{"prompt": NaN}', b"\xff", b"[" * 100_000, b'{"a":1e999}']
)
def test_what_is_no_json_object(client: TestClient, body: bytes) -> None:
    response = client.post(COMPLETIONS, content=body)
    assert response.status_code == 400
    assert response.json()["error"]["code"] == "invalid_json"


@pytest.mark.parametrize("name", sorted(fields.NEUTRAL))
def test_a_field_that_cannot_be_honoured_is_refused_unless_it_asks_for_nothing(client: TestClient, name: str) -> None:
    """BUG-31's rule: never dropped silently. n > 1, logprobs, penalties, tools, formats: all of them."""
    for value in (*fields.NEUTRAL[name], None):
        assert client.post(CHAT, json={"messages": HI, name: value}).status_code == 200
    for path in (COMPLETIONS, CHAT):
        # A chat honours tool_choice, and so misses what one needs.
        assert refused(client, path, **{name: {"some": "thing"}})["param"] in (name, "tool_choice.type")


@pytest.mark.parametrize(
    "body",
    [{"length_penalty": 0.5}, {"use_beam_search": 0}, {"verbosity": "low"}],
)
def test_values_close_to_neutral_ones(client: TestClient, body: dict[str, Any]) -> None:
    assert refused(client, **body)["param"] == next(iter(body))


def test_unknown_fields_are_accepted_and_logged_once(
    client: TestClient, worker: ScriptedWorker, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, logger=fields.__name__):
        for _ in range(2):
            asked(client, worker, never_heard_of=1, user="me")
    assert [record.getMessage() for record in caplog.records] == ["unknown request field 'never_heard_of' is ignored"]


def test_another_model(client: TestClient) -> None:
    error = refused(client, status=404, model="gpt-4")
    assert (error["code"], error["param"]) == ("model_not_found", "model")
    assert client.get("/v1/models/gpt-4").json()["error"]["code"] == "model_not_found"


def test_no_chat_template() -> None:
    from tandem.runtime.chat import ChatTemplate

    app = build_app(scripted_service(ScriptedWorker(), chat=ChatTemplate(None)))
    with TestClient(app) as client:
        assert "no chat template" in refused(client, CHAT)["message"]


def test_a_full_queue(client: TestClient, worker: ScriptedWorker) -> None:
    worker.full = True
    for stream in (False, True):
        response = client.post(COMPLETIONS, json={"prompt": "hi", "stream": stream})
        assert (response.status_code, response.headers["retry-after"]) == (429, "3")
        assert response.json()["error"]["type"] == "rate_limit_error"
