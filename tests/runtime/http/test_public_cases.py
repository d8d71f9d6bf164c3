"""Cases of other people's trackers that concern what a client reads, each as its report has it (docs/bug-cases.md)."""

from __future__ import annotations

import json
from typing import Any

import pytest
from starlette.testclient import TestClient

from tandem.runtime.http.app import build_app
from tests.service import IM_END, ScriptedWorker, scripted_service

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
ASKED: dict[str, Any] = {
    CHAT: {"messages": [{"role": "user", "content": "hi"}], "logprobs": True, "top_logprobs": 1},
    COMPLETIONS: {"prompt": "hi", "logprobs": 1},
}
ROUNDS = [list(b"one two"), list(b" thr"), [*b"ee END four", IM_END]]


def tokens_of(choice: dict[str, Any]) -> list[Any]:
    told = choice["logprobs"]
    return [] if told is None else told["content"] if "content" in told else told["token_logprobs"]


def choices_of(path: str, body: dict[str, Any]) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """The choices of all replies to `body`, in order, and the usage."""
    with TestClient(build_app(scripted_service(ScriptedWorker(ROUNDS)))) as client:
        answer = client.post(path, json={**ASKED[path], **body})
    if "stream" not in body:
        return answer.json()["choices"], answer.json()["usage"]
    chunks = [json.loads(event.removeprefix("data: ")) for event in answer.text.split("\n\n")[:-2]]
    return [choice for chunk in chunks for choice in chunk["choices"]], chunks[-1]["usage"]


@pytest.mark.parametrize("stream", [{}, {"stream": True, "stream_options": {"include_usage": True}}])
@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
@pytest.mark.parametrize(
    ("limit", "count"),
    [
        ({"max_tokens": 100}, 23),
        ({"max_tokens": 1}, 1),
        ({"max_tokens": 9}, 9),
        ({"max_tokens": 100, "stop": "END"}, 17),
        ({"max_tokens": 100, "stop": "w"}, 6),
    ],
)
def test_bug_33_as_many_logprobs_as_tokens(path: str, stream: Any, limit: Any, count: int) -> None:
    """Of every end: the model's own, the budget's, and that of a text in the middle of a block."""
    choices, usage = choices_of(path, {**stream, **limit})
    assert sum(len(tokens_of(choice)) for choice in choices) == usage["completion_tokens"] == count
