"""What a spec check asks: prose, code, repetition and a chat in the bundle's own tokens, and ids that mean nothing.

Knows nothing of how answers are made.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import TYPE_CHECKING

from tandem.errors import RequestError
from tandem.runtime.chat import ChatTemplate
from tandem.runtime.checks.lab import token_ids

if TYPE_CHECKING:
    from tokenizers import Tokenizer

PROSE = (
    "The harbour froze early that year. Boats that had gone out for herring in October came back with ice on their "
    "rigging, and by the second week of November a child could walk from the customs house to the lighthouse. Old "
    "Marta, who kept the keys to both, said that she had seen it twice before and that it ended badly each time."
)
CODE = '''def mean(values: list[float]) -> float:
    """The arithmetic mean; an empty list is an error."""
    if not values:
        raise ValueError("mean of nothing")
    return sum(values) / len(values)


def variance(values: list[float]) -> float:
    middle = mean(values)
    return mean([(value - middle) ** 2 for value in values])


def test_mean() -> None:
    assert mean([1.0, 2.0, 3.0]) == 2.0
'''
REPETITION = "name: apple, price: 3, stock: 12\nname: pear, price: 4, stock: 7\nname: plum, price: 2, stock: 31\n" * 3
QUESTION = "What is the capital of France? Answer in one sentence, then repeat the sentence three times."
SHORTEST = 8
"""Ids that a text must give to be of use."""


def prompts(tokenizer: Tokenizer | None, chat: ChatTemplate, vocab_size: int) -> dict[str, list[int]]:
    """Prompts by name. Without a tokenizer, or with one that does not fit the vocabulary, only the random ones."""
    texts = {"prose": PROSE, "code": CODE, "repetition": REPETITION}
    with contextlib.suppress(RequestError):  # a base model has no template
        texts["chat"] = chat.render([{"role": "user", "content": QUESTION}])
    found: dict[str, list[int]] = {}
    for name, text in texts.items():
        ids = tokenizer.encode(text, add_special_tokens=False).ids if tokenizer else []
        if len(ids) >= SHORTEST and max(ids) < vocab_size:
            found[name] = ids
    period = token_ids(9, vocab_size, seed=5)
    return found | {"noise": token_ids(300, vocab_size, seed=3), "looping noise": period * 30}


def last(ids: Sequence[int], length: int) -> tuple[int, ...]:
    """The last `length` ids of `ids` repeated: a prompt that ends as the text does."""
    return tuple((list(ids) * -(-length // len(ids)))[-length:])
