"""Texts to ids and back over HTTP: vLLM's forms of both, and what is refused."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from starlette.testclient import TestClient
from tokenizers import Tokenizer
from tokenizers.processors import TemplateProcessing

from tandem import __version__
from tandem.runtime.http.app import build_app
from tests.service import CONTEXT_LENGTH, IM_END, IM_START, ScriptedWorker, byte_tokenizer, scripted_service

HI: list[dict[str, Any]] = [{"role": "user", "content": "hi"}]
TURN = [IM_START, *b"user\nhi", IM_END, *b"\n"]
OPENED = [*TURN, IM_START, *b"assistant\n"]


def beginning_tokenizer() -> Tokenizer:
    """Adds IM_START to a bare text."""
    tokenizer = byte_tokenizer()
    tokenizer.post_processor = TemplateProcessing(single="<|im_start|> $A", special_tokens=[("<|im_start|>", IM_START)])
    return tokenizer


@pytest.fixture
def client() -> Iterator[TestClient]:
    worker = ScriptedWorker(full=True)
    with TestClient(build_app(scripted_service(worker, tokenizer=beginning_tokenizer()))) as client:
        yield client
    assert worker.requests == [], "the engine has no part in it"


def tokens(client: TestClient, **body: Any) -> list[int]:
    response = client.post("/tokenize", json=body)
    assert response.status_code == 200, response.text
    reply = response.json()
    assert (reply["count"], reply["max_model_len"]) == (len(reply["tokens"]), CONTEXT_LENGTH)
    return reply["tokens"]


def test_version(client: TestClient) -> None:
    assert client.get("/version").json() == {"version": __version__}


def test_a_prompt(client: TestClient) -> None:
    assert tokens(client, prompt="hé", model="tiny") == [IM_START, *"hé".encode()]
    assert tokens(client, prompt="hi", add_special_tokens=None) == [IM_START, *b"hi"]
    assert tokens(client, prompt="hi", add_special_tokens=False) == [*b"hi"]
    assert tokens(client, prompt="", add_special_tokens=False) == []
    assert tokens(client, prompt="x" * 500, add_special_tokens=False) == [*b"x" * 500], "longer than the context"


def test_messages_are_what_the_model_would_get(client: TestClient) -> None:
    assert tokens(client, messages=HI) == OPENED
    assert tokens(client, messages=HI, add_generation_prompt=False) == TURN
    assert tokens(client, messages=HI, continue_final_message=True) == TURN[:-2]
    assert tokens(client, messages=HI, add_special_tokens=True) == [IM_START, *OPENED]
    parts = [{"role": "user", "content": [{"type": "text", "text": "hi"}]}]
    assert tokens(client, messages=parts, chat_template_kwargs={"any": 1}) == OPENED


def test_entries_of_the_vocabulary(client: TestClient) -> None:
    reply = client.post("/tokenize", json={"prompt": "a b", "return_token_strs": True}).json()
    assert reply["token_strs"] == ["<|im_start|>", "a", "Ġ", "b"]
    assert client.post("/tokenize", json={"prompt": "a"}).json()["token_strs"] is None


@pytest.mark.parametrize("text", ["", "日本 <|im_end|> 👍🏽\n", "a" * 5000])
def test_there_and_back(client: TestClient, text: str) -> None:
    ids = tokens(client, prompt=text, add_special_tokens=False)
    assert client.post("/detokenize", json={"model": "tiny", "tokens": ids}).json() == {"prompt": text}


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/tokenize", {}, "prompt"),
        ("/tokenize", {"prompt": "x", "messages": HI}, "prompt"),
        ("/tokenize", {"prompt": ["x"]}, "prompt"),
        ("/tokenize", {"prompt": "x", "add_generation_prompt": True}, "add_generation_prompt"),
        ("/tokenize", {"prompt": "x", "chat_template_kwargs": {}}, "chat_template_kwargs"),
        ("/tokenize", {"prompt": "x", "return_token_strs": 1}, "return_token_strs"),
        ("/tokenize", {"messages": []}, "messages"),
        ("/tokenize", {"messages": [{"role": "user"}]}, "messages[0].content"),
        ("/tokenize", {"messages": HI, "chat_template_kwargs": {"messages": []}}, "chat_template_kwargs.messages"),
        ("/tokenize", {"messages": HI, "tools": [{"type": "function"}]}, "tools[0].function"),
        ("/tokenize", {"prompt": "hi", "tools": []}, "tools"),
        ("/tokenize", {"prompt": "x", "continue_final_message": True}, "continue_final_message"),
        (
            "/tokenize",
            {"messages": HI, "continue_final_message": True, "add_generation_prompt": True},
            "continue_final_message",
        ),
        ("/detokenize", {}, "tokens"),
        ("/detokenize", {"tokens": "x"}, "tokens"),
        ("/detokenize", {"tokens": [1, True]}, "tokens[1]"),
        ("/detokenize", {"tokens": [1, -1]}, "tokens[1]"),
        ("/detokenize", {"tokens": [1, IM_END + 1]}, "tokens[1]"),
        ("/detokenize", {"tokens": [2**31]}, "tokens[0]"),
    ],
)
def test_a_wrong_field_is_named(client: TestClient, path: str, body: dict[str, Any], param: str) -> None:
    response = client.post(path, json=body)
    assert response.status_code == 400, response.text
    assert response.json()["error"]["param"] == param


def test_another_model_and_other_edges(client: TestClient) -> None:
    for path, body in (("/tokenize", {"prompt": "x"}), ("/detokenize", {"tokens": [1]})):
        response = client.post(path, json={**body, "model": "gpt-4"})
        assert (response.status_code, response.json()["error"]["param"]) == (404, "model")
        assert client.get(path).status_code == 405
        assert client.post(path, content=b"{").json()["error"]["code"] == "invalid_json"
    with TestClient(build_app(scripted_service(ScriptedWorker()), max_body_bytes=32)) as small:
        assert small.post("/tokenize", json={"prompt": "x" * 40}).status_code == 413
