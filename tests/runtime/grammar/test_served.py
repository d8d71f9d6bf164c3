"""Structured output of a real bundle: the openai SDK parses it, and drafts change no token."""

from __future__ import annotations

import json
import queue
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import openai
import pytest
from pydantic import BaseModel, ConfigDict, Field

from tandem.runtime.delivery import End, Event
from tandem.runtime.grammar import specification
from tandem.runtime.http.app import build_app
from tandem.runtime.loading import LoadOptions, load
from tandem.runtime.request import FinishReason, Penalties, Request, Sampling
from tandem.runtime.service import Service
from tests.bundles import compiled, state_home
from tests.service import PATIENCE, on_loopback

ASKED: list[Any] = [{"role": "user", "content": "Who is at the mill?"}]


class Cat(BaseModel):
    model_config = ConfigDict(extra="forbid")
    name: str = Field(max_length=8)
    mood: Literal["calm", "wild"]
    lives: int = Field(ge=1, le=9)


class House(BaseModel):
    model_config = ConfigDict(extra="forbid")
    cats: list[Cat] = Field(min_length=1, max_length=2)
    warm: bool


@pytest.fixture(scope="module")
def service() -> Iterator[Service]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_STATE_HOME", str(state_home()))
        path: Path = compiled("llama", "fp32")
        service = load(path, LoadOptions(threads=1, max_num_seqs=2, learn_cost=False))
        yield service
        service.worker.stop()


def answered(service: Service, request: Request) -> End:
    events = queue.Queue[Event]()
    service.submit(request, [], events.put)
    while not isinstance(event := events.get(timeout=PATIENCE), End):
        pass
    return event


@pytest.mark.parametrize(
    ("sampling", "penalties"),
    [
        (Sampling(), Penalties()),
        (Sampling(0.8, top_p=0.9, seed=4), Penalties()),
        (Sampling(1.2, seed=5), Penalties(repetition=1.2, frequency=0.5)),
    ],
)
def test_drafts_change_no_token(service: Service, sampling: Sampling, penalties: Penalties) -> None:
    guide = service.grammars.compile(specification.json_schema(House.model_json_schema()))
    prompt = service.encode('{"cats": [{"name": "Tom", "mood": "calm", "lives": 9}], "warm"', add_special_tokens=False)
    drafted = 0
    for start in range(0, 12, 3):
        asked = service.request(prompt[start:], sampling=sampling, penalties=penalties, guides=[guide])
        plain, other = answered(service, replace(asked, speculate=False)), answered(service, asked)
        assert other.ids == plain.ids and plain.reason is FinishReason.STOP and plain.stats.drafted == 0
        House.model_validate_json(service.tokenizer.decode(list(plain.ids)))
        drafted += other.stats.accepted
    assert drafted > 0


def test_the_openai_sdk_parses(service: Service) -> None:
    with (
        on_loopback(build_app(service)) as url,
        openai.OpenAI(base_url=f"{url}/v1", api_key="key", max_retries=0) as client,
    ):
        reply = client.chat.completions.parse(
            model=service.model, messages=ASKED, response_format=House, temperature=1, seed=3
        )
        assert isinstance(reply.choices[0].message.parsed, House) and reply.choices[0].finish_reason == "stop"
        with client.chat.completions.stream(model=service.model, messages=ASKED, response_format=House) as stream:
            final = stream.get_final_completion()
        assert isinstance(final.choices[0].message.parsed, House)
        several = client.chat.completions.create(
            model=service.model,
            messages=ASKED,
            n=2,
            temperature=1.5,
            seed=1,
            extra_body={"structured_outputs": {"choice": ["red", "green", "blue"]}},
        )
        assert {choice.message.content for choice in several.choices} <= {"red", "green", "blue"}
        cut = client.chat.completions.create(
            model=service.model, messages=ASKED, max_tokens=12, response_format={"type": "json_object"}
        )
        text = cut.choices[0].message.content or ""
        assert text.startswith("{")
        if cut.choices[0].finish_reason == "stop":
            assert isinstance(json.loads(text), dict)
        with pytest.raises(openai.BadRequestError) as caught:
            client.chat.completions.create(
                model=service.model, messages=ASKED, extra_body={"guided_regex": "[xy]{3}a{5000}z"}
            )
        assert caught.value.param == "guided_regex" and "follow without a choice" in str(caught.value)
