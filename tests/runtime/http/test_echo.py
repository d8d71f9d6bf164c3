"""Prompts in answers: echoed, and with their logprobs in OpenAI's lists and in vLLM's; lm-eval's reading of them."""

from __future__ import annotations

import http.client
import json
from collections.abc import Iterator
from typing import Any

import numpy as np
import openai
import pytest
from starlette.testclient import TestClient

from tandem.runtime.drafters.lookup import lookup_drafters
from tandem.runtime.engine import Engine
from tandem.runtime.http.app import build_app
from tandem.runtime.request import Request, Sampling
from tandem.runtime.worker import Worker
from tests.fake_routers import EvenRouter, FreePrices
from tests.fakes import ScriptedExecutor, geometry, marks, plain_text, row_logits
from tests.service import CONTEXT_LENGTH, IM_END, PATIENCE, ScriptedWorker, on_loopback, scripted_service

COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"
HI: list[Any] = [{"role": "user", "content": "hi"}]
VOCAB = 258


@pytest.fixture(scope="module")
def served() -> Iterator[str]:
    """The address of an engine whose logits are a hash of the text before them."""
    capacities = geometry(context_length=CONTEXT_LENGTH, vocab_size=VOCAB)
    engine = Engine(
        ScriptedExecutor(capacities=capacities),
        drafters=lookup_drafters(),
        prices=FreePrices(),  # type: ignore[arg-type]
        router=EvenRouter(),
        max_lanes=3,
        prefill_chunk=7,
    )
    worker = Worker(engine)
    worker.start()
    try:
        with on_loopback(build_app(scripted_service(worker, stop_ids=frozenset()))) as url:
            yield url
    finally:
        worker.stop()


def asked(url: str, path: str = COMPLETIONS, **body: Any) -> Any:
    connection = http.client.HTTPConnection(url.removeprefix("http://"), timeout=PATIENCE)
    connection.request("POST", path, json.dumps(body))
    reply = json.load(connection.getresponse())
    connection.close()
    return reply


def posted(worker: ScriptedWorker, path: str = COMPLETIONS, **body: Any) -> Any:
    prompt = {"messages": HI} if path == CHAT else {"prompt": "hi"}
    with TestClient(build_app(scripted_service(worker)), raise_server_exceptions=False) as client:
        return client.post(path, json=prompt | body)


def log_softmax(ids: list[int]) -> np.ndarray:
    """Row i: float64 log-probabilities of what follows ids[:i + 1]."""
    rows = np.array([row_logits(own, VOCAB) for own in marks(ids)], np.float64)
    return rows - np.logaddexp.reduce(rows, axis=1)[:, None]


def test_an_echo_is_the_prompt_and_then_the_answer() -> None:
    worker = ScriptedWorker([list(b"one "), [*b"two", IM_END]])
    for prompt, text in (("hé<|im_end|>", "hé<|im_end|>"), ([*b"h", 0xE6, IM_END], "h\ufffd<|im_end|>")):
        (choice,) = posted(worker, prompt=prompt, echo=True).json()["choices"]
        assert (choice["text"], choice["logprobs"]) == (text + "one two", None)
        assert worker.requests[-1].prompt_logprobs is None, "a text alone needs no logits"


def test_an_echo_of_several_prompts_and_choices_is_each_ones_own() -> None:
    worker = ScriptedWorker([[*b"!", IM_END]])
    choices = posted(worker, prompt=["ab", "c"], n=2, echo=True, logprobs=0).json()["choices"]
    assert [choice["text"] for choice in choices] == ["ab!", "ab!", "c!", "c!"]
    assert [choice["logprobs"]["tokens"] for choice in choices[1:3]] == [
        ["a", "b", "!", "<|im_end|>"],
        ["c", "!", "<|im_end|>"],
    ]


def test_logprobs_of_an_echo_begin_with_null_and_count_characters_from_the_prompts_first() -> None:
    worker = ScriptedWorker([[*b"xy", IM_END]])
    given = {"echo": True, "logprobs": 1, "max_tokens": 9}
    (choice,) = posted(worker, **given).json()["choices"]
    lists = choice["logprobs"]
    assert lists["tokens"] == ["h", "i", "x", "y", "<|im_end|>"]
    assert lists["token_logprobs"] == [None, *(-token / 8 for token in (*b"ixy", IM_END))]
    assert lists["top_logprobs"][:2] == [None, {"A": -1.5, "i": -ord("i") / 8}]
    assert lists["text_offset"] == [0, 1, 2, 3, 4]
    stream = posted(worker, **given, stream=True).text.split("\n\n")[:-2]
    pieces = [json.loads(event.removeprefix("data: "))["choices"][0] for event in stream]
    assert [piece["text"] for piece in pieces] == ["hixy", ""]
    for name, whole in lists.items():
        assert [value for piece in pieces for value in piece["logprobs"][name]] == whole


def test_no_tokens_at_all_but_the_prompts() -> None:
    worker = ScriptedWorker([list(b"never")])
    reply = posted(worker, max_tokens=0, echo=True, logprobs=0).json()
    (choice,) = reply["choices"]
    assert (choice["text"], choice["finish_reason"], choice["logprobs"]["tokens"]) == ("hi", "length", ["h", "i"])
    assert reply["usage"] == {
        "prompt_tokens": 2,
        "completion_tokens": 0,
        "total_tokens": 2,
        "prompt_tokens_details": {"cached_tokens": 0},
    }
    (choice,) = posted(worker, max_tokens=0, prompt_logprobs=0).json()["choices"]
    assert choice["text"] == "" and len(choice["prompt_logprobs"]) == 2
    stream = posted(worker, max_tokens=0, echo=True, stream=True).text.split("\n\n")
    assert len(stream) == 3 and json.loads(stream[0].removeprefix("data: "))["choices"][0]["text"] == "hi"


def test_vllms_prompt_logprobs() -> None:
    worker = ScriptedWorker([[*b"x", IM_END]])
    i = ord("i")
    wanted = [
        None,
        {
            str(i): {"logprob": -i / 8, "rank": i + 1, "decoded_token": "i"},
            "65": {"logprob": -1.5, "rank": 1, "decoded_token": "A"},
            "66": {"logprob": -2.5, "rank": 2, "decoded_token": "B"},
        },
    ]
    reply = posted(worker, prompt_logprobs=2, max_tokens=5).json()
    assert reply["choices"][0]["prompt_logprobs"] == wanted and "prompt_logprobs" not in reply
    assert reply["choices"][0]["logprobs"] is None
    both = posted(worker, prompt_logprobs=2, echo=True, logprobs=0).json()["choices"][0]
    assert both["prompt_logprobs"] == wanted and both["logprobs"]["top_logprobs"][1] == {"i": -i / 8}
    reply = posted(worker, CHAT, prompt_logprobs=0, n=2).json()
    ids = worker.requests[-1].prompt
    assert [list(entry) for entry in reply["prompt_logprobs"][1:]] == [[str(token)] for token in ids[1:]]
    assert reply["prompt_logprobs"][0] is None and set(reply["choices"][0]) == {
        "index",
        "message",
        "finish_reason",
        "logprobs",
    }
    assert "prompt_logprobs" not in posted(worker, CHAT).json()


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        (COMPLETIONS, {"prompt_logprobs": 1, "stream": True}, "prompt_logprobs"),
        (CHAT, {"prompt_logprobs": 0, "stream": True}, "prompt_logprobs"),
        (COMPLETIONS, {"prompt_logprobs": 21}, "prompt_logprobs"),
        (COMPLETIONS, {"prompt_logprobs": -1}, "prompt_logprobs"),
        (COMPLETIONS, {"prompt_logprobs": True}, "prompt_logprobs"),
        (COMPLETIONS, {"echo": 1}, "echo"),
        (CHAT, {"echo": True}, "echo"),
        (COMPLETIONS, {"max_tokens": 0}, "max_tokens"),
        (COMPLETIONS, {"max_tokens": 0, "logprobs": 1}, "max_tokens"),
        (CHAT, {"max_tokens": 0, "prompt_logprobs": 1}, "max_tokens"),
        (COMPLETIONS, {"prompt": "", "echo": True}, "prompt"),
    ],
)
def test_what_cannot_be_told(path: str, body: dict[str, Any], param: str) -> None:
    response = posted(ScriptedWorker([[IM_END]]), path, **body)
    assert (response.status_code, response.json()["error"]["param"]) == (400, param)


def test_lm_evals_local_completions(served: str) -> None:
    """Its request, and its reading of the answer: the continuation's logprobs lie between the context and the one
    token made, and it is greedy where each is the largest of its alternatives.
    """
    chance = np.random.default_rng(4)
    pairs = []
    for number in range(6):
        text = [int(token) for token in chance.integers(0, VOCAB, 9 + 5 * number)]
        for _ in range(number % 3):  # continuations that are greedy, by one token or two
            text.append(int(log_softmax(text)[-1].argmax()))
        pairs.append((text, len(text) - max(number % 3, 1 + number // 2)))
    body = {"model": "tiny", "prompt": [text for text, _ in pairs], "temperature": 0, "max_tokens": 1, "logprobs": 1}
    choices = sorted(asked(served, **body, seed=1234, echo=True)["choices"], key=lambda choice: choice["index"])
    greedy = []
    for choice, (text, begin) in zip(choices, pairs, strict=True):
        lists, exact = choice["logprobs"], log_softmax(text)
        wanted = [exact[place - 1, text[place]] for place in range(begin, len(text))]
        logprobs, tops = lists["token_logprobs"][begin:-1], lists["top_logprobs"][begin:-1]
        assert logprobs == pytest.approx(wanted, abs=1e-5)
        greedy.append(all(own == max(top.values()) for own, top in zip(logprobs, tops, strict=True)))
        assert greedy[-1] == all(exact[place - 1].argmax() == text[place] for place in range(begin, len(text)))
    assert True in greedy and False in greedy


def test_logprobs_of_an_echo_are_those_of_the_answer_that_it_was(served: str) -> None:
    """One arithmetic: what was measured when the tokens were made is measured again, bit by bit, when they are read."""
    sampled = {"temperature": 1, "seed": 1, "logprobs": 3}
    made = asked(served, prompt=[5, 6, 7], max_tokens=40, **sampled)["choices"][0]["logprobs"]
    ids = plain_text(Request((5, 6, 7), 40, Sampling(1.0, seed=1)), VOCAB, CONTEXT_LENGTH)
    read = asked(served, prompt=[5, 6, 7, *ids], max_tokens=0, echo=True, **sampled)["choices"][0]["logprobs"]
    assert len(ids) == 40 and read["tokens"][3:] == made["tokens"]
    assert read["token_logprobs"][3:] == made["token_logprobs"] and read["top_logprobs"][3:] == made["top_logprobs"]


def test_the_openai_sdk(served: str) -> None:
    with openai.OpenAI(base_url=f"{served}/v1", api_key="key", max_retries=0) as client:
        given: Any = {"model": "tiny", "prompt": "abc", "max_tokens": 4, "echo": True, "logprobs": 2}
        (choice,) = client.completions.create(**given).choices
        assert choice.text.startswith("abc") and choice.logprobs is not None
        assert choice.logprobs.tokens is not None and choice.logprobs.tokens[:3] == ["a", "b", "c"]
        assert choice.logprobs.token_logprobs is not None and len(choice.logprobs.token_logprobs) == 7
        assert choice.logprobs.token_logprobs[0] is None
        chunks = [chunk.choices[0] for chunk in client.completions.create(**given, stream=True)]
        assert "".join(chunk.text for chunk in chunks) == choice.text
        told = [value for chunk in chunks if chunk.logprobs for value in chunk.logprobs.token_logprobs or ()]
        assert told == choice.logprobs.token_logprobs
        reply = client.chat.completions.create(
            model="tiny", messages=HI, max_tokens=2, extra_body={"prompt_logprobs": 1}
        )
        assert reply.model_extra is not None and reply.model_extra["prompt_logprobs"][0] is None
