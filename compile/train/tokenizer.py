"""A byte-level BPE tokenizer for Python: indentation is apart from line ends, so a prompt may end before or behind it.

Knows nothing of models. Every text survives a round trip; special tokens in a text are text.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

SEPARATOR, TURN, END_OF_TURN = "<|endoftext|>", "<|im_start|>", "<|im_end|>"
SPECIAL_TOKENS = (SEPARATOR, TURN, END_OF_TURN)
"""Ids 0, 1, 2."""
SEPARATOR_ID, TURN_ID, END_OF_TURN_ID = range(3)

PATTERN = (
    r"(?:[ \t]*\r?\n)+"  # line ends and blank lines
    r"|(?<=\n)[ \t]+"  # indentation
    r"|[^\s\p{L}\p{N}]?\p{L}+"  # a word, with an underscore, a point, a quote before it
    r"| \p{L}+"
    r"|\p{N}{1,2}"
    r"| ?[^\s\p{L}\p{N}]+"
    r"|\s+(?!\S)|\s"
)


def train_tokenizer(texts: Iterable[str], vocab_size: int) -> Tokenizer:
    """A tokenizer of `vocab_size` tokens at most, special tokens and all 256 bytes among them."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(PATTERN), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=list(SPECIAL_TOKENS),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        max_token_length=24,
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def encode(tokenizer: Tokenizer, texts: Sequence[str]) -> list[list[int]]:
    """Ids of each text; what looks like a special token is encoded as the text it is."""
    tokenizer.encode_special_tokens = True
    return [encoding.ids for encoding in tokenizer.encode_batch_fast(list(texts), add_special_tokens=False)]


def encode_turns(tokenizer: Tokenizer, turns: Sequence[tuple[str, str]]) -> list[int]:
    """Ids of (role, content) turns, as the chat template writes them."""
    ids: list[int] = []
    for role, content in turns:
        opening, body, closing = encode(tokenizer, [f"{role}\n", content, "\n"])
        ids += [TURN_ID, *opening, *body, END_OF_TURN_ID, *closing]
    return ids
