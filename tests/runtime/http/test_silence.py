"""What clients say is nobody's business: no log, on no level, holds a word of a prompt or an answer."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import httpx
import pytest

from tandem.errors import TandemError
from tandem.runtime.chat import ChatTemplate
from tandem.runtime.http.app import build_app
from tests.service import CONTEXT_LENGTH, PATIENCE, ScriptedWorker, on_loopback, scripted_service

MARK = "velvet-heron"
SAID = b"copper-otter"
TALK = [{"role": "user", "content": MARK}]
STRICT = "{% for m in messages %}{{ raise_exception('no ' ~ m.content) }}{% endfor %}"


@dataclass
class Failing(ScriptedWorker):
    """Has a bug where requests come in."""

    def submit(self, request: Any, sink: Any) -> Any:
        raise RuntimeError(f"no room for {len(request.prompt)} tokens")


@contextmanager
def client(worker: ScriptedWorker, **changes: Any) -> Iterator[httpx.Client]:
    with (
        on_loopback(build_app(scripted_service(worker, **changes), api_key=MARK)) as url,
        httpx.Client(base_url=url, headers={"authorization": f"Bearer {MARK}"}, timeout=PATIENCE) as client,
    ):
        yield client


def asked(client: httpx.Client) -> Iterator[int]:
    """Statuses of sound and of wrong requests with the mark in every place that may hold a text."""
    for path, words in (("/v1/completions", {"prompt": MARK}), ("/v1/chat/completions", {"messages": TALK})):
        for stream in (False, True):
            body: dict[str, Any] = {**words, "stream": stream}
            yield client.post(path, json=body).status_code
            for wrong in ({"stop": MARK, "temperature": 9}, {"model": MARK}, {"max_tokens": MARK}, {"n": MARK}):
                yield client.post(path, json={**body, **wrong}).status_code
            yield client.post(path, content=json.dumps(body)[:-1]).status_code
            yield client.post(path, json=body, headers={"authorization": f"Bearer {MARK}!"}).status_code
            yield client.post(f"{path}/{MARK}?prompt={MARK}", json=body).status_code
    yield client.post("/v1/completions", json={"prompt": MARK * CONTEXT_LENGTH}).status_code
    yield client.post("/tokenize", json={"messages": TALK}).status_code
    yield client.post("/tokenize", json={"prompt": MARK, "return_token_strs": True}).status_code


def test_nothing_that_is_said_is_logged(caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]) -> None:
    caplog.set_level(logging.DEBUG)
    statuses = set[int]()
    for worker in (
        ScriptedWorker([list(SAID)]),
        ScriptedWorker([list(SAID)], error=TandemError("a pass failed")),
        Failing(),
    ):
        with client(worker) as sound:
            statuses.update(asked(sound))
    with client(ScriptedWorker(), chat=ChatTemplate(STRICT)) as strict:
        statuses.update(asked(strict))
    assert statuses == {200, 400, 401, 404, 500}
    records = [record for record in caplog.records if record.name.split(".")[0] not in ("httpx", "httpcore")]
    assert any(record.exc_info for record in records), "a bug's traceback is there"
    formatter = logging.Formatter("%(name)s %(message)s")
    logged = [*(formatter.format(record) for record in records), *capfd.readouterr()]
    assert [text for text in logged if MARK in text or SAID.decode() in text] == []
