"""Answers that go on with a message which ends amid thoughts: read, bounded, watched and counted as one block."""

from __future__ import annotations

import json

import pytest

from tandem.runtime.loading import LoadOptions
from tandem.runtime.thinking.model import BARE_CLOSING, QWEN_CLOSING
from tests.service import IM_END, TEMPLATE
from tests.thoughtful import CHAT, CHOICE, HI, JSON_FORM, QWEN, answer, served, thoughts

BEGUN = [*HI, {"role": "assistant", "content": "<think>abcab"}]
TAGGED = [{"role": "user", "content": "what is <think>?"}]
"""A tag, and nothing that is gone on with."""


@pytest.mark.parametrize("drafts", [True, False])
@pytest.mark.parametrize("reads", [True, False])
def test_an_answer_that_goes_on_with_thoughts_is_bounded_from_its_first_token(drafts: bool, reads: bool) -> None:
    """The same figures for both readings; the five letters that the message had already count for nothing."""
    with served(template=QWEN, drafts=drafts, reads=reads) as client:
        for form, wanted in (({}, {"yes"}), (CHOICE, {"yes"}), (JSON_FORM, {'{"a":1}', '{"a": 1}'})):
            for bound, budget in (({"max_reasoning_tokens": 0}, 0), ({"reasoning_effort": "minimal"}, 20)):
                body = {"messages": BEGUN, "continue_final_message": True, "max_tokens": 200, **bound, **form}
                reply = client.post(CHAT, json=body).json()
                (choice,), usage = reply["choices"], reply["usage"]
                closing = QWEN_CLOSING if budget else BARE_CLOSING
                content, thought = choice["message"]["content"], choice["message"].get("reasoning_content") or ""
                if not reads:
                    thought, content = content[: budget + len(closing)], content[budget + len(closing) :]
                assert thoughts(thought) == budget and content in wanted, "parted where the closing text ends"
                assert thought[budget:].strip() == (closing.partition("</think>")[0] if reads else closing).strip()
                reasoning = usage["completion_tokens_details"]["reasoning_tokens"]
                assert reasoning == budget + len(closing.rstrip())


def test_a_stream_that_goes_on_with_thoughts_counts_them() -> None:
    options = {"include_usage": True, "continuous_usage_stats": True}
    body = {"messages": BEGUN, "continue_final_message": True, "stream": True, "stream_options": options}
    with served(reads=True) as client:
        events = client.post(CHAT, json=body | {"max_tokens": 200, "max_reasoning_tokens": 9}).text.split("\n\n")
    chunks = [json.loads(event.removeprefix("data: ")) for event in events[:-2]]
    deltas = [choice["delta"] for chunk in chunks for choice in chunk["choices"]]
    thought = "".join(delta.get("reasoning_content") or "" for delta in deltas)
    assert thoughts(thought) == 9 and "".join(delta.get("content") or "" for delta in deltas) == "yes"
    assert chunks[-1]["usage"]["completion_tokens_details"]["reasoning_tokens"] == 9 + len(QWEN_CLOSING.rstrip())


def test_the_server_bounds_and_watches_thoughts_that_are_gone_on_with() -> None:
    body = {"messages": BEGUN, "continue_final_message": True}
    with served(LoadOptions(think_budget=7, conductor="on")) as client:
        assert thoughts(answer(client, **body)[0]) == 7
    with served(LoadOptions(conductor="on")) as client:
        text, _, reasoning = answer(client, **body)
        assert thoughts(text) == 128 and reasoning == 200, "a loop is one of the answer's own thoughts"


@pytest.mark.parametrize(
    "messages",
    [
        [*TAGGED, {"role": "assistant", "content": ""}],
        [*TAGGED, {"role": "assistant", "content": "<think>ab</think>"}],
        [*TAGGED, {"role": "assistant", "content": "so"}],
    ],
)
def test_a_tag_elsewhere_opens_nothing(messages: list[dict[str, str]]) -> None:
    def says(ids: tuple[int, ...]) -> int:
        said = bytes(token for token in ids if token < 256).split(b"assistant\n")[-1]
        return IM_END if said.endswith(b"yes") else b"yes"[len(said) - len(said.rstrip(b"yes"))]

    with served(template=TEMPLATE + "{# <think> #}", script=says) as client:
        for told in ({"messages": messages, "continue_final_message": True}, {"messages": TAGGED}):
            assert answer(client, **told, max_reasoning_tokens=0) == ("yes", 4, 0)
