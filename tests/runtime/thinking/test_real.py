"""Budgets over real kernels and real tokenizers, whose tags take several tokens: exact, drafted or not."""

from __future__ import annotations

import queue
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tandem.runtime.chat import ChatTemplate
from tandem.runtime.delivery import End, Event
from tandem.runtime.loading import LoadOptions, load
from tandem.runtime.request import Penalties, Sampling
from tandem.runtime.service import Service
from tandem.runtime.thinking.budget import Wish
from tandem.runtime.thinking.model import thinking_model
from tests.bundles import compiled, state_home
from tests.service import PATIENCE

TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n{% endfor %}"
    "<|im_start|>assistant\n<think>\n{# until </think>, enable_thinking #}"
)
ASKED = [{"role": "user", "content": "Count to ten, then say which numbers of them are even and which are odd."}]


@contextmanager
def loaded(path: Path, drafter: str, monkeypatch: pytest.MonkeyPatch, conductor: bool = False) -> Iterator[Service]:
    monkeypatch.setenv("XDG_STATE_HOME", str(state_home()))
    service = load(path, LoadOptions(drafter=drafter, max_num_seqs=1, max_model_len=256, threads=1))  # type: ignore[arg-type]
    thinking = thinking_model(TEMPLATE, service.tokenizer, conductor=conductor)
    try:
        yield replace(service, chat=ChatTemplate(TEMPLATE), thinking=thinking, stop_ids=frozenset())
    finally:
        service.worker.stop()


def answer(service: Service, wish: Wish, length: int, **options: Any) -> End:
    prompt = service.encode(service.chat.render(ASKED), add_special_tokens=False)
    request = service.request(prompt, max_tokens=length, thoughts=wish, **options)
    events: queue.Queue[Event] = queue.Queue()
    service.submit(request, (), events.put)
    while not isinstance(event := events.get(timeout=6 * PATIENCE), End):
        pass
    return event


def check(ends: Sequence[End], service: Service, budget: int, free: Sequence[int]) -> None:
    """The thoughts of an unbounded answer up to the budget, then the closing text, drafted and not."""
    assert service.thinking is not None
    closings = service.thinking.closings
    closing = closings.usual if budget else closings.bare
    through_tag = len(service.tokenizer.encode(service.tokenizer.decode(closing).rstrip()).ids)
    for end in ends:
        assert end.ids[:budget] == tuple(free[:budget])
        assert end.ids[budget : budget + len(closing)] == closing
        assert end.num_reasoning == budget + through_tag < len(end.ids)
    assert len({end.ids for end in ends}) == 1 and ends[0].stats.rounds < ends[1].stats.rounds


def budgets_hold(path: Path, budgets: Sequence[int], length: int, monkeypatch: pytest.MonkeyPatch) -> None:
    wishes = [(budget, sampling) for budget in budgets for sampling in (Sampling(), Sampling(0.8, 0.95, seed=budget))]
    found, free = list[list[End]](), list[End]()
    for drafter in ("lookup", "none"):
        with loaded(path, drafter, monkeypatch) as service:
            tag = service.tokenizer.encode("</think>", add_special_tokens=False).ids
            assert len(tag) > 2, "this is about tags of several tokens"
            if not free:
                free = [answer(service, Wish(), length, sampling=sampling) for _, sampling in wishes]
            assert all(end.num_reasoning == len(end.ids) == length for end in free), "it never closes them itself"
            found.append([answer(service, Wish(budget), length, sampling=sampling) for budget, sampling in wishes])
    for (budget, _), one, drafted, plain in zip(wishes, free, *found, strict=True):
        check([drafted, plain], service, budget, one.ids)


def test_a_tiny_model(monkeypatch: pytest.MonkeyPatch) -> None:
    budgets_hold(compiled("smollm2", "bf16"), [0, 1, 7], 96, monkeypatch)


@pytest.mark.smollm2
def test_smollm2(smollm2_bundle: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    budgets_hold(smollm2_bundle, [5], 48, monkeypatch)


def test_a_loop_is_closed_at_one_token(monkeypatch: pytest.MonkeyPatch) -> None:
    """A bias makes the model say one token for ever, so the 128th of it is the last."""
    texts = []
    for drafter in ("lookup", "none"):
        with loaded(compiled("smollm2", "bf16"), drafter, monkeypatch, conductor=True) as service:
            (token,) = service.encode("a", add_special_tokens=False)
            end = answer(service, Wish(), 160, penalties=Penalties(logit_bias=((token, 100.0),)))
            texts.append(end.ids)
            assert service.thinking is not None
            assert end.ids[128:] == service.thinking.closings.usual[:32] and set(end.ids[:128]) == {token}
    assert texts[0] == texts[1]
