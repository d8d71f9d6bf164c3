"""Several choices and several prompts in one request: indices, noise, counts, order, errors and hang-ups."""

from __future__ import annotations

import http.client
import json
import time
from collections import Counter
from collections.abc import Iterator
from typing import Any
from urllib.request import urlopen

import numpy as np
import openai
import pytest
from starlette.testclient import TestClient

from tandem.errors import TandemError
from tandem.runtime.engine import Engine
from tandem.runtime.http.app import build_app
from tandem.runtime.request import FinishReason, LaneStats, Request, Sampling, Ticket
from tandem.runtime.seeds import choice_seed
from tandem.runtime.worker import Worker
from tests.exposition import value
from tests.fake_routers import EvenRouter, FreePrices
from tests.fakes import ScriptedExecutor, geometry, marks, plain_text, row_logits
from tests.service import CONTEXT_LENGTH, IM_END, PATIENCE, ScriptedWorker, on_loopback, scripted_service

COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"
HI: list[Any] = [{"role": "user", "content": "hi"}]
VOCAB = 258


@pytest.fixture
def served() -> Iterator[str]:
    """The address of an engine whose texts are a hash of all before them, with 3 lanes."""
    capacities = geometry(context_length=CONTEXT_LENGTH, vocab_size=VOCAB)
    engine = Engine(
        ScriptedExecutor(capacities=capacities),
        drafters=None,
        prices=FreePrices(),  # type: ignore[arg-type]
        router=EvenRouter(),
        max_lanes=3,
        max_queue=20,
    )
    worker = Worker(engine)
    worker.start()
    try:
        with on_loopback(build_app(scripted_service(worker))) as url:
            yield url
    finally:
        worker.stop()


def asked(url: str, **body: Any) -> Any:
    connection = http.client.HTTPConnection(url.removeprefix("http://"), timeout=PATIENCE)
    connection.request("POST", COMPLETIONS, json.dumps({"max_tokens": 6, "ignore_eos": True, "logprobs": 0} | body))
    reply = json.load(connection.getresponse())
    connection.close()
    return reply


def ids_of(choice: Any) -> list[float]:
    """The logprobs of a choice's tokens: they tell texts of random bytes apart as the texts do not."""
    return choice["logprobs"]["token_logprobs"]


def definition(prompt: str, seed: int | None, count: int = 6) -> list[float]:
    """The same of the plain answer by definition."""
    request = Request(tuple(prompt.encode()), count, Sampling(1.0, seed=seed))
    answer = plain_text(request, VOCAB, CONTEXT_LENGTH)
    below = marks([*request.prompt, *answer])
    rows = [row_logits(below[len(prompt) - 1 + i], VOCAB).astype(float) for i in range(count)]
    return [float(row[token] - np.logaddexp.reduce(row)) for row, token in zip(rows, answer, strict=True)]


def test_a_seed_and_the_number_of_a_choice_say_what_it_is(served: str) -> None:
    reply = asked(served, prompt=["ab", "xyz"], n=3, seed=-7, temperature=1)
    assert [choice["index"] for choice in reply["choices"]] == [*range(6)]
    wanted = [definition(prompt, choice_seed(-7, number)) for prompt in ("ab", "xyz") for number in range(3)]
    for choice, logprobs in zip(reply["choices"], wanted, strict=True):
        assert ids_of(choice) == pytest.approx(logprobs, abs=1e-5)
    assert reply["usage"] == {
        "prompt_tokens": 2 + 3,
        "completion_tokens": 36,
        "total_tokens": 41,
        "prompt_tokens_details": {"cached_tokens": 0},
    }


def test_choices_share_their_prompt_and_say_what_they_say_alone(served: str) -> None:
    """Nine choices over three lanes; of 21 tokens two pages of 8 are whole below the last one."""
    prompt = "to be, or not to be, "
    reply = asked(served, prompt=prompt, n=3, best_of=9, seed=5, temperature=1)
    every = sorted((definition(prompt, choice_seed(5, number)) for number in range(9)), key=sum, reverse=True)
    for choice, wanted in zip(reply["choices"], every, strict=False):
        assert ids_of(choice) == pytest.approx(wanted, abs=1e-5)
    assert reply["usage"]["prompt_tokens_details"] == {"cached_tokens": 0}, "none of an earlier request"
    page = urlopen(f"{served}/metrics").read().decode()
    assert value(page, "tandem:prefix_cache_queries_total") == 9 * len(prompt)
    assert value(page, "tandem:prefix_cache_hits_total") >= 2 * 16


def test_without_a_seed_choices_differ_and_greedy_ones_do_not(served: str) -> None:
    choices = asked(served, prompt="ab", n=8, temperature=1)["choices"]
    assert len({tuple(ids_of(choice)) for choice in choices}) == 8
    choices = asked(served, prompt="ab", n=4, best_of=6)["choices"]
    assert len({tuple(ids_of(choice)) for choice in choices}) == 1
    assert [choice["index"] for choice in choices] == [*range(4)]


def test_the_best_of_several(served: str) -> None:
    reply = asked(served, prompt=["ab", "c"], n=2, best_of=5, seed=3, temperature=1)
    for place, prompt in enumerate(("ab", "c")):
        every = sorted((definition(prompt, choice_seed(3, number)) for number in range(5)), key=sum, reverse=True)
        for choice, wanted in zip(reply["choices"][2 * place : 2 * place + 2], every, strict=False):
            assert ids_of(choice) == pytest.approx(wanted, abs=1e-5)
    assert reply["usage"]["completion_tokens"] == 2 * 5 * 6
    assert asked(served, prompt="ab", best_of=3, logprobs=None)["choices"][0]["logprobs"] is None


def test_more_than_can_ever_wait_is_no_reason_to_come_back(served: str) -> None:
    for prompt, n, param in (("ab", 12, "n"), (["ab", "c"] * 4, 3, "prompt")):
        body = {"prompt": [prompt] * 2 if n == 12 else prompt, "n": n}
        error = asked(served, **body)["error"]
        assert (error["type"], error["param"]) == ("invalid_request_error", param)
        assert error["code"] == "too_many_choices"
    assert len(asked(served, prompt=["ab"] * 23)["choices"]) == 23


@pytest.mark.parametrize("path", [COMPLETIONS, CHAT])
def test_a_stream_of_several_choices(path: str) -> None:
    worker = ScriptedWorker([list(b"one"), list(b" two "), [*b"three", IM_END]])
    prompt = {"messages": HI} if path == CHAT else {"prompt": ["hi", "you"]}
    options = {"include_usage": True, "continuous_usage_stats": True}
    body = prompt | {"n": 3, "stream": True, "stream_options": options, "max_tokens": 50}
    with TestClient(build_app(scripted_service(worker))) as client:
        lines = client.post(path, json=body).text.split("\n\n")
    assert lines[-2:] == ["data: [DONE]", ""] and lines.count("data: [DONE]") == 1
    *chunks, last = [json.loads(line.removeprefix("data: ")) for line in lines[:-2]]
    choices = [choice for chunk in chunks for choice in chunk["choices"]]
    number = 3 if path == CHAT else 6
    for index in range(number):
        own = [choice for choice in choices if choice["index"] == index]
        texts = [choice["text"] if path == COMPLETIONS else choice["delta"].get("content", "") for choice in own]
        assert "".join(texts) == "one two three"
        assert [choice["finish_reason"] for choice in own] == [None] * (len(own) - 1) + ["stop"]
        if path == CHAT:
            roles = [choice["delta"].get("role") for choice in own]
            assert roles == ["assistant"] + [None] * (len(own) - 1)
    counts = [chunk["usage"]["completion_tokens"] for chunk in chunks]
    assert counts == sorted(counts) and counts[-1] == 14 * number
    assert last["choices"] == [] and last["usage"]["completion_tokens"] == 14 * number
    assert last["usage"]["prompt_tokens"] == (5 if path == COMPLETIONS else len(worker.requests[0].prompt))


class OneFails(ScriptedWorker):
    """Ends the second request with an error when all three are there, the others never."""

    def _play(self, ticket: Ticket) -> None:
        if ticket.request.sampling.seed != choice_seed(5, 1):
            return super()._play(ticket)
        while len(self.requests) < 3:
            time.sleep(1e-3)
        self.error, self.endless = TandemError("a pass failed"), True
        ticket.sink.finished(FinishReason.ERROR, LaneStats(), self.error)
        with self.changed:
            self.ends.append(FinishReason.ERROR)
            self.changed.notify_all()


@pytest.mark.parametrize("path", [COMPLETIONS, CHAT])
def test_an_error_of_one_choice_ends_all(path: str) -> None:
    prompt = {"messages": HI} if path == CHAT else {"prompt": "hi"}
    for stream in (False, True):
        worker = OneFails([[65]], endless=True)
        body = prompt | {"n": 3, "seed": 5, "stream": stream, "max_tokens": 190}
        with TestClient(build_app(scripted_service(worker)), raise_server_exceptions=False) as client:
            response = client.post(path, json=body)
        worker.wait_for_ends(3)
        assert Counter(end.value for end in worker.ends) == {"cancelled": 2, "error": 1}
        if stream:
            *_, error, done, rest = response.text.split("\n\n")
            assert json.loads(error.removeprefix("data: "))["error"]["message"] == "a pass failed"
            assert (done, rest) == ("data: [DONE]", "")
        else:
            assert (response.status_code, response.json()["error"]["message"]) == (500, "a pass failed")


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_hangs_up_takes_all_its_choices_along(stream: bool) -> None:
    """BUG-53."""
    worker = ScriptedWorker([[65]], endless=True)
    with on_loopback(build_app(scripted_service(worker))) as url:
        connection = http.client.HTTPConnection(url.removeprefix("http://"), timeout=PATIENCE)
        body = {"prompt": ["x", "y"], "n": 2, "max_tokens": 198, "stream": stream}
        connection.request("POST", COMPLETIONS, json.dumps(body))
        if stream:
            assert connection.getresponse().status == 200
        while len(worker.requests) < 4:
            time.sleep(1e-3)
        connection.close()
        worker.wait_for_ends(4)
    assert worker.num_cancels == 4 and {end.value for end in worker.ends} == {"cancelled"}


def test_the_openai_sdk() -> None:
    worker = ScriptedWorker([list(b"one "), [*b"two", IM_END]])
    with (
        on_loopback(build_app(scripted_service(worker))) as url,
        openai.OpenAI(base_url=f"{url}/v1", api_key="key", max_retries=0) as client,
    ):
        reply = client.chat.completions.create(model="tiny", messages=HI, n=2, max_tokens=20)
        assert [(c.index, c.message.content, c.finish_reason) for c in reply.choices] == [
            (0, "one two", "stop"),
            (1, "one two", "stop"),
        ]
        texts: Counter[int] = Counter()
        for chunk in client.chat.completions.create(model="tiny", messages=HI, n=2, max_tokens=20, stream=True):
            texts.update({choice.index: len(choice.delta.content or "") for choice in chunk.choices})
        assert texts == {0: 7, 1: 7}
        completion = client.completions.create(model="tiny", prompt=["x", "y"], n=2, best_of=2, max_tokens=20)
        assert [(c.index, c.text) for c in completion.choices] == [(i, "one two") for i in range(4)]
    assert worker.num_cancels == 0
