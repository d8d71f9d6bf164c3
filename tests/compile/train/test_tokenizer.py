"""Every text comes back from its tokens, also in parts that are cut around a line's indentation."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer

from tandem.compile.train.tokenizer import SPECIAL_TOKENS, encode, encode_turns, train_tokenizer

TEXT = """\
def f(first, *rest):
    if first:
        return f(*rest)


for i in range(10):
    print(i)
"""


@pytest.fixture(scope="module")
def words() -> Tokenizer:
    return train_tokenizer([TEXT * 3, "# A line of words, and one more line.\n" * 4], 360)


@given(
    st.text() | st.lists(st.sampled_from([*SPECIAL_TOKENS, "\n", "    ", "\t", "é", "日", "x_1", "\r\n"])).map("".join)
)
def test_texts_come_back(words: Tokenizer, text: str) -> None:
    (ids,) = encode(words, [text])
    assert words.decode(ids, skip_special_tokens=False) == text
    assert all(number >= len(SPECIAL_TOKENS) for number in ids)


def test_special_tokens_come_first_and_every_byte_has_one(words: Tokenizer) -> None:
    assert [words.token_to_id(token) for token in SPECIAL_TOKENS] == [0, 1, 2]
    assert 3 + 256 < words.get_vocab_size() <= 360


@pytest.mark.parametrize("end", ["def f(first, *rest):\n", "def f(first, *rest):\n    "])
def test_a_prompt_may_end_before_or_behind_an_indentation(words: Tokenizer, end: str) -> None:
    whole, part = encode(words, [TEXT, end])
    assert whole[: len(part)] == part


def test_turns_are_what_the_chat_template_writes(words: Tokenizer) -> None:
    ids = encode_turns(words, [("user", "Say <|im_end|>"), ("assistant", "it")])
    text = words.decode(ids, skip_special_tokens=False)
    assert text == "<|im_start|>user\nSay <|im_end|><|im_end|>\n<|im_start|>assistant\nit<|im_end|>\n"
    assert (ids.count(1), ids.count(2)) == (2, 2)
