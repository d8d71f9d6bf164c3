"""Answers, whole and streamed: text, finish reasons, counts and the exact shape of every chunk."""

from __future__ import annotations

import json
from typing import Any

import pytest
from starlette.testclient import TestClient

from tandem import __version__
from tandem.errors import TandemError
from tandem.runtime.http.app import build_app
from tests.service import IM_END, IM_START, ScriptedWorker, scripted_service

COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"
FINGERPRINT = f"tandem-{__version__}-01234567"


def post(worker: ScriptedWorker, path: str, **body: Any) -> Any:
    prompt = {"messages": [{"role": "user", "content": "hi"}]} if path == CHAT else {"prompt": "hi"}
    app = build_app(scripted_service(worker), ping_seconds=0.05)
    with TestClient(app, raise_server_exceptions=False) as client:
        return client.post(path, json=prompt | {"max_tokens": 100} | body)


def whole(worker: ScriptedWorker, path: str = COMPLETIONS, **body: Any) -> tuple[str, str, int]:
    """Text, finish reason and completion tokens."""
    reply = post(worker, path, **body).json()
    (choice,) = reply["choices"]
    text = choice["text"] if path == COMPLETIONS else choice["message"]["content"]
    return text, choice["finish_reason"], reply["usage"]["completion_tokens"]


def streamed(worker: ScriptedWorker, path: str = COMPLETIONS, **body: Any) -> list[Any]:
    """The chunks; the form of the stream itself is checked here."""
    response = post(worker, path, stream=True, **body)
    assert response.status_code == 200
    assert response.headers["content-type"].startswith("text/event-stream")
    events = response.text.split("\n\n")
    assert events[-2:] == ["data: [DONE]", ""]
    chunks = [json.loads(event.removeprefix("data: ")) for event in events[:-2] if event != ": ping"]
    assert len({(chunk["id"], chunk["created"]) for chunk in chunks if "id" in chunk}) == 1
    return chunks


def pieces(chunks: list[Any], path: str = COMPLETIONS) -> tuple[list[str], list[str | None]]:
    """Texts and finish reasons of the choices, in order."""
    choices = [choice for chunk in chunks for choice in chunk["choices"]]
    assert {choice["index"] for choice in choices} == {0}
    texts = [c["text"] if path == COMPLETIONS else c["delta"].get("content", "") for c in choices]
    return texts, [c["finish_reason"] for c in choices]


def test_a_completion() -> None:
    reply = post(ScriptedWorker([list(b"one"), [*b" two", IM_END]]), COMPLETIONS).json()
    assert reply.pop("id").startswith("cmpl-") and reply.pop("created") > 1_700_000_000
    assert reply == {
        "object": "text_completion",
        "model": "tiny",
        "system_fingerprint": FINGERPRINT,
        "choices": [{"index": 0, "text": "one two", "finish_reason": "stop", "logprobs": None}],
        "usage": {
            "prompt_tokens": 2,
            "completion_tokens": 8,
            "total_tokens": 10,
            "prompt_tokens_details": {"cached_tokens": 0},
        },
    }


def test_a_chat_completion() -> None:
    reply = post(ScriptedWorker([[*b"one", IM_END]]), CHAT).json()
    assert reply["id"].startswith("chatcmpl-") and reply["object"] == "chat.completion"
    (choice,) = reply["choices"]
    message = {"role": "assistant", "content": "one", "refusal": None}
    assert choice == {"index": 0, "message": message, "finish_reason": "stop", "logprobs": None}


def test_a_stream_has_one_chunk_a_round_and_one_finish_reason() -> None:
    """BUG-51."""
    rounds = [list(b"one"), list(b" two "), [*b"three", IM_END]]
    chunks = streamed(ScriptedWorker(rounds), CHAT)
    assert [chunk["object"] for chunk in chunks] == ["chat.completion.chunk"] * 5
    assert chunks[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert pieces(chunks, CHAT) == (["", "one", " two ", "three", ""], [None] * 4 + ["stop"])
    assert chunks[-1]["choices"][0]["delta"] == {}
    assert all("usage" not in chunk and chunk["system_fingerprint"] == FINGERPRINT for chunk in chunks)
    chunks = streamed(ScriptedWorker(rounds))
    assert pieces(chunks) == (["one", " two ", "three", ""], [None] * 3 + ["stop"])


def test_the_usage_chunk_comes_last_and_has_no_choices() -> None:
    """BUG-51."""
    for path in (COMPLETIONS, CHAT):
        worker = ScriptedWorker([list(b"ab"), [0x63]])
        chunks = streamed(worker, path, stream_options={"include_usage": True}, max_tokens=3)
        assert all(chunk["usage"] is None for chunk in chunks[:-1])
        assert chunks[-1]["choices"] == []
        assert chunks[-1]["usage"]["completion_tokens"] == 3
        assert pieces(chunks, path)[1][-1] == "length"


def test_continuous_usage() -> None:
    options = {"include_usage": True, "continuous_usage_stats": True}
    chunks = streamed(ScriptedWorker([list(b"ab"), [0x63, IM_END]]), stream_options=options)
    assert [chunk["usage"]["completion_tokens"] for chunk in chunks] == [2, 4, 4, 4]


def test_a_stop_string_early_in_a_long_block() -> None:
    """BUG-35."""
    rounds = [list(b"x END a bcdefghijkl")]
    assert whole(ScriptedWorker(rounds), stop=["END"]) == ("x ", "stop", 5)
    assert pieces(streamed(ScriptedWorker(rounds), stop="END")) == (["x ", ""], [None, "stop"])


def test_the_earlier_of_stop_and_length_wins() -> None:
    """BUG-37, with a stop id and with a stop string."""
    for rounds, stop in (([[10, 11, IM_END, 20, 21, 22]], None), ([[10, 11, 0x58, 20, 21, 22]], "X")):
        assert whole(ScriptedWorker(rounds), max_tokens=5, stop=stop) == ("\n\x0b", "stop", 3)
        assert whole(ScriptedWorker(rounds), max_tokens=2, stop=stop) == ("\n\x0b", "length", 2)
        assert whole(ScriptedWorker(rounds), max_tokens=3, stop=stop) == ("\n\x0b", "stop", 3)


def test_nothing_after_an_end_token() -> None:
    """BUG-40."""
    rounds = [[0x41, IM_END, 0x42, 0x43]]
    assert whole(ScriptedWorker(rounds)) == ("A", "stop", 2)
    assert whole(ScriptedWorker(rounds), ignore_eos=True) == ("ABC", "length", 4)
    assert pieces(streamed(ScriptedWorker(rounds))) == (["A", ""], [None, "stop"])


def test_stops_that_are_kept_and_special_tokens_that_are_shown() -> None:
    rounds = [list(b"x EN"), list(b"D a")]
    kept = {"include_stop_str_in_output": True}
    assert whole(ScriptedWorker(rounds), stop=["END"], **kept) == ("x END", "stop", 5)
    assert pieces(streamed(ScriptedWorker(rounds), stop="END", **kept)) == (["x EN", "D", ""], [None, None, "stop"])
    rounds = [[0x41, IM_START, 0x42, IM_END, 0x43]]
    assert whole(ScriptedWorker(rounds), **kept) == ("AB", "stop", 4)
    assert whole(ScriptedWorker(rounds), stop_token_ids=[0x42], **kept) == ("AB", "stop", 3)
    shown = {"skip_special_tokens": False}
    assert whole(ScriptedWorker(rounds), **shown) == ("A<|im_start|>B", "stop", 4)
    assert whole(ScriptedWorker(rounds), CHAT, **shown, **kept) == ("A<|im_start|>B<|im_end|>", "stop", 4)


def test_characters_over_rounds() -> None:
    """BUG-50: one delta with the emoji, and a clean end inside a character."""
    rounds = [[0xF0, 0x9F], [0x98, 0x80], [0xE6, 0x97], [0xA5, IM_END]]
    assert pieces(streamed(ScriptedWorker(rounds)))[0] == ["😀", "日", ""]
    assert whole(ScriptedWorker(rounds)) == ("😀日", "stop", 8)
    assert whole(ScriptedWorker(rounds), max_tokens=6) == ("😀", "length", 6)
    assert pieces(streamed(ScriptedWorker(rounds), max_tokens=6)) == (["😀", ""], [None, "length"])


def test_a_held_back_beginning_of_a_stop_comes_with_the_end() -> None:
    chunks = streamed(ScriptedWorker([list(b"go EN"), list(b"D")]), CHAT, stop=["ENDS"])
    assert pieces(chunks, CHAT) == (["", "go ", "END"], [None, None, "length"])


def test_pings_while_nothing_comes() -> None:
    worker = ScriptedWorker([list(b"a"), list(b"b")], hold=1)
    app, body = build_app(scripted_service(worker), ping_seconds=0.02), {"prompt": "x", "stream": True}
    with TestClient(app) as client, client.stream("POST", COMPLETIONS, json=body) as response:
        lines = []
        for line in response.iter_lines():
            lines.append(line)
            if lines.count(": ping") == 2:
                worker.release.set()
    assert lines[0].startswith("data: {") and lines.count(": ping") >= 2
    assert lines[-2:] == ["data: [DONE]", ""]


@pytest.mark.parametrize("path", [COMPLETIONS, CHAT])
def test_an_engine_that_fails(path: str) -> None:
    worker = ScriptedWorker([list(b"one")], error=TandemError("a pass failed"))
    response = post(worker, path)
    assert (response.status_code, response.json()["error"]["type"]) == (500, "server_error")
    chunks = streamed(worker, path)
    assert chunks[-1]["error"]["message"] == "a pass failed"
    assert pieces(chunks[:-1], path)[1] == [None] * (len(chunks) - 1)


def test_an_answer_cut_off_by_the_server() -> None:
    worker = ScriptedWorker([list(b"a")], endless=True)
    cancel_all = worker.submit

    def submit(request: Any, sink: Any) -> Any:
        ticket = cancel_all(request, sink)
        ticket.cancelled = True
        return ticket

    worker.submit = submit  # type: ignore[method-assign]
    response = post(worker, COMPLETIONS, max_tokens=10_000)
    assert (response.status_code, response.json()["error"]["type"]) == (503, "unavailable_error")
