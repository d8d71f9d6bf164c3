"""A service of a model that thinks in circles, over HTTP: what tests of budgets stand on."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from starlette.testclient import TestClient

from tandem.runtime.chat import ChatTemplate
from tandem.runtime.drafters.lookup import lookup_drafters
from tandem.runtime.engine import Engine
from tandem.runtime.http.app import build_app
from tandem.runtime.loading import LoadOptions, _thinking
from tandem.runtime.service import Service
from tandem.runtime.worker import Worker
from tests.fake_routers import EvenRouter, FreePrices
from tests.fakes import ScriptedExecutor, geometry
from tests.service import IM_END, TEMPLATE, byte_tokenizer, scripted_service

COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"
HI = [{"role": "user", "content": "hi"}]
OFF = "<think>\n\n</think>\n\n"
QWEN = TEMPLATE.replace(
    "assistant\n{% endif %}",
    "assistant\n{% if enable_thinking is defined and enable_thinking is false %}"
    + OFF
    + "{% else %}<think>\n{% endif %}"
    "{% endif %}",
)
CONTEXT = 400
SCHEMA = {"type": "object", "properties": {"a": {"const": 1}}, "required": ["a"], "additionalProperties": False}
JSON_FORM = {"response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": SCHEMA}}}
CHOICE = {"guided_choice": ["yes", "no"]}


def model(ids: tuple[int, ...]) -> int:
    """Thinks in circles of three letters, and says `yes` and ends once its thoughts are closed."""
    said = bytes(token for token in ids if token < 256).split(b"assistant\n")[-1]
    behind = said.partition(b"</think>")[2].strip()
    if b"</think>" not in said:
        return b"abc"[len(said) % 3]
    return b"yes"[len(behind)] if len(behind) < 3 else IM_END


@contextmanager
def served(
    options: LoadOptions | None = None,
    template: str = QWEN,
    script: Callable[..., int] = model,
    drafts: bool = True,
    reads: bool = False,
) -> Iterator[TestClient]:
    """A client of a service as `loading.load` would make it, over a scripted device. `reads` parts thoughts off."""
    capacities = geometry(vocab_size=258, context_length=CONTEXT, max_rows=64)
    executor = ScriptedExecutor(script, capacities=capacities)
    drafters = lookup_drafters() if drafts else None
    engine = Engine(executor, drafters=drafters, prices=FreePrices(), router=EvenRouter())
    worker, tokenizer = Worker(engine), byte_tokenizer()
    worker.start()
    thinking = _thinking(template, tokenizer, options or LoadOptions(), engine)
    service: Service = scripted_service(
        worker,
        chat=ChatTemplate(template),
        thinking=thinking,
        thinks=reads,
        context_length=CONTEXT,
        tokenizer=tokenizer,
    )
    try:
        with TestClient(build_app(service), raise_server_exceptions=False) as client:
            yield client
    finally:
        worker.stop()


def answer(client: TestClient, path: str = CHAT, **body: Any) -> tuple[str, int, int]:
    """Text, completion tokens and reasoning tokens."""
    given = {"messages": HI} if path == CHAT else {"prompt": "x<think>"}
    response = client.post(path, json={"max_tokens": 200, **given, **body})
    assert response.status_code == 200, response.text
    reply = response.json()
    (choice,) = reply["choices"]
    usage = reply["usage"]
    text = choice["message"]["content"] if path == CHAT else choice["text"]
    return text, usage["completion_tokens"], usage["completion_tokens_details"]["reasoning_tokens"]


def thoughts(text: str) -> int:
    """Letters before the closing text, which is cut off by the end of the answer at times."""
    return len(text) - len(text.lstrip("abc"))
