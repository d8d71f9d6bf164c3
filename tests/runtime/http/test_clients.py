"""Real clients over a real socket: the openai SDK, clients that hang up, and the engine behind its own thread."""

from __future__ import annotations

import http.client
import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import openai
import pytest

from tandem.errors import TandemError
from tandem.runtime.http.app import build_app
from tests.service import IM_END, ScriptedWorker, on_loopback, scripted_service

HI: list[Any] = [{"role": "user", "content": "hi"}]


@contextmanager
def sdk(worker: ScriptedWorker, **options: Any) -> Iterator[openai.OpenAI]:
    with (
        on_loopback(build_app(scripted_service(worker), **options)) as url,
        openai.OpenAI(base_url=f"{url}/v1", api_key="key", max_retries=0) as client,
    ):
        yield client


def test_the_openai_sdk() -> None:
    worker = ScriptedWorker([list("日本".encode()), [*b" two", IM_END]])
    with sdk(worker, api_key="key") as client:
        assert [model.id for model in client.models.list()] == ["tiny"]
        completion = client.completions.create(model="tiny", prompt="x", max_tokens=50)
        assert (completion.choices[0].text, completion.choices[0].finish_reason) == ("日本 two", "stop")
        reply = client.chat.completions.create(model="tiny", messages=HI, extra_body={"top_k": 3})
        assert reply.choices[0].message.content == "日本 two"
        assert reply.usage is not None and reply.usage.completion_tokens == 11
    assert worker.requests[-1].sampling.top_k == 3
    assert worker.num_cancels == 0, "BUG-53: normal ends send no aborts"


def test_the_openai_sdk_reads_logprobs() -> None:
    worker = ScriptedWorker([[0x41, 0xE6], [0x97, 0xA5, IM_END]])
    with sdk(worker) as client:
        (choice,) = client.completions.create(model="tiny", prompt="x", logprobs=2, max_tokens=9).choices
        assert choice.text == "A日" and choice.logprobs is not None
        assert choice.logprobs.tokens == ["A", "\ufffd", "\ufffd", "\ufffd", "<|im_end|>"]
        assert choice.logprobs.text_offset == [0, 1, 2, 3, 4]
        assert choice.logprobs.token_logprobs == [-token / 8 for token in (0x41, 0xE6, 0x97, 0xA5, IM_END)]
        assert choice.logprobs.top_logprobs is not None
        assert choice.logprobs.top_logprobs[0] == {"A": -1.5, "B": -2.5}
        for stream in (False, True):
            given: Any = {"messages": HI, "logprobs": True, "top_logprobs": 1, "stream": stream}
            reply: Any = client.chat.completions.create(model="tiny", **given)
            choices = [chunk.choices[0] for chunk in reply] if stream else reply.choices
            tokens = [token for c in choices if c.logprobs for token in c.logprobs.content]
            assert b"".join(bytes(token.bytes) for token in tokens) == "A日<|im_end|>".encode()
            assert [(top.token, top.logprob) for token in tokens for top in token.top_logprobs] == [("A", -1.5)] * 5


def test_the_openai_sdk_streams() -> None:
    """BUG-51: plain, and cut by max_tokens, each with its usage."""
    worker = ScriptedWorker([list(b"one "), list(b"two"), [IM_END]])
    with sdk(worker) as client:
        for max_tokens, text, reason, count in ((50, "one two", "stop", 8), (5, "one t", "length", 5)):
            stream = client.chat.completions.create(
                model="tiny", messages=HI, max_tokens=max_tokens, stream=True, stream_options={"include_usage": True}
            )
            *chunks, last = list(stream)
            deltas = [chunk.choices[0].delta.content or "" for chunk in chunks]
            reasons = [chunk.choices[0].finish_reason for chunk in chunks]
            assert ("".join(deltas), reasons) == (text, [None] * (len(chunks) - 1) + [reason])
            assert last.choices == [] and last.usage is not None and last.usage.completion_tokens == count
        stream = client.completions.create(model="tiny", prompt="x", stream=True)
        assert "".join(chunk.choices[0].text for chunk in stream) == "one two"
    assert worker.num_cancels == 0


def test_the_openai_sdk_raises_what_went_wrong() -> None:
    worker = ScriptedWorker([list(b"one")], error=TandemError("a pass failed"))
    with sdk(worker) as client:
        with pytest.raises(openai.BadRequestError) as bad:
            client.chat.completions.create(model="tiny", messages=HI, n=17)
        assert bad.value.param == "n"
        with pytest.raises(openai.NotFoundError):
            client.chat.completions.create(model="other", messages=HI)
        with pytest.raises(openai.APIError, match="a pass failed"):
            list(client.chat.completions.create(model="tiny", messages=HI, stream=True))
        worker.full = True
        with pytest.raises(openai.RateLimitError):
            client.chat.completions.create(model="tiny", messages=HI)
    with sdk(worker, api_key="another") as client, pytest.raises(openai.AuthenticationError):
        client.models.list()


def post(url: str, body: dict[str, Any]) -> http.client.HTTPConnection:
    connection = http.client.HTTPConnection(url.removeprefix("http://"), timeout=20)
    connection.request("POST", "/v1/completions", json.dumps(body), {"content-type": "application/json"})
    return connection


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_hangs_up(stream: bool) -> None:
    """BUG-53: 20 times, streamed and not, while rounds come and while none does: the request is cancelled once."""
    for hold in (0, None):
        worker = ScriptedWorker([[]] if hold is None else [[65]], endless=True, hold=hold)
        with on_loopback(build_app(scripted_service(worker))) as url:
            for number in range(1, 11):
                connection = post(url, {"prompt": "x", "max_tokens": 198, "stream": stream})
                if stream:
                    assert connection.getresponse().status == 200
                while len(worker.requests) < number:
                    time.sleep(1e-3)
                connection.close()
                worker.wait_for_ends(number)
            assert worker.num_cancels == 10
            assert {end.value for end in worker.ends} == {"cancelled"}


def test_a_body_that_stays_half_sent() -> None:
    with on_loopback(build_app(scripted_service(ScriptedWorker()), body_seconds=0.05)) as url:
        connection = http.client.HTTPConnection(url.removeprefix("http://"), timeout=20)
        connection.putrequest("POST", "/v1/completions")
        connection.putheader("content-length", "100")
        connection.endheaders(b'{"prompt":')
        response = connection.getresponse()
        assert (response.status, response.getheader("connection")) == (408, "close")
        assert json.load(response)["error"]["type"] == "invalid_request_error"
        connection.close()


def test_the_next_client_is_served_as_by_a_fresh_server() -> None:
    """BUG-53 on the engine itself: its lane is free, and the same request gets the same text."""
    from tandem.runtime.engine import Engine
    from tandem.runtime.worker import Worker
    from tests.fake_routers import FreePrices
    from tests.fakes import ScriptedExecutor, geometry

    capacities = geometry(context_length=200, vocab_size=258)
    engine = Engine(
        ScriptedExecutor(lambda ids: 65 + len(ids) % 26, capacities=capacities),
        drafters=None,
        prices=FreePrices(),  # type: ignore[arg-type]
        max_lanes=1,
        max_queue=1,
    )
    worker = Worker(engine)
    worker.start()
    try:
        with on_loopback(build_app(scripted_service(worker))) as url:
            for stream in (True, False, True):
                post(url, {"prompt": "x", "max_tokens": 190, "stream": stream}).close()
                last = post(url, {"prompt": "xy", "max_tokens": 5})
                assert json.load(last.getresponse())["choices"][0]["text"] == "CDEFG"
                last.close()
            stray = post(url, {"prompt": [1, 258]})
            error = json.load(stray.getresponse())["error"]
            assert (error["type"], error["param"]) == ("invalid_request_error", "prompt")
            stray.close()
            assert worker.drain(20)
            assert (worker.num_running, worker.num_waiting) == (0, 0)
    finally:
        worker.stop()
