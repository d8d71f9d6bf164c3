"""The tokenizer of random models: of the size wanted, readable, and every id is text at once."""

from __future__ import annotations

import pytest
from tokenizers import Tokenizer

from bench.gpu.words import SPECIAL, tokenizer_json

SIZE = 5000
TOKENIZER = Tokenizer.from_str(tokenizer_json(SIZE))


def test_it_has_the_size_wanted_with_special_tokens_first() -> None:
    assert TOKENIZER.get_vocab_size() == SIZE
    assert [TOKENIZER.id_to_token(i) for i in range(3)] == list(SPECIAL)


@pytest.mark.parametrize("text", ["Hello, world 1!\n", "def f(x):\n    return x\n", "née\t€ 日本"])
def test_text_comes_back(text: str) -> None:
    assert TOKENIZER.decode(TOKENIZER.encode(text).ids) == text


def test_every_id_behind_the_bytes_is_text_of_its_own() -> None:
    words = [TOKENIZER.decode([i]) for i in range(len(SPECIAL) + 256, SIZE)]
    assert all(word.isascii() and word for word in words)
    assert len(set(words)) == len(words)


@pytest.mark.parametrize("size", [1000, 300_000])
def test_a_size_it_cannot_have_is_refused(size: int) -> None:
    with pytest.raises(ValueError, match=str(size)):
        tokenizer_json(size)
