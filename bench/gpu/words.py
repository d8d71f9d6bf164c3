"""A tokenizer of any size from 4,096 tokens up whose ids all decode to letters and digits, so that any id is text.

A model of random weights says any id of its vocabulary; a client must see the first one as soon as it is there.
"""

from __future__ import annotations

import json
import string
from itertools import islice, product

SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
LETTERS = string.ascii_letters + string.digits + "-_"
"""64 characters: two make 4,096 tokens, three 262,144."""
CHAT_TEMPLATE = "{% for message in messages %}{{ message['content'] }}{% endfor %}"


def tokenizer_json(vocab_size: int) -> str:
    """The text of a byte-level BPE tokenizer.json: bytes, pairs of LETTERS, then triples as merges of those.

    ValueError for a vocabulary that is too small or too large for this.
    """
    from tokenizers.pre_tokenizers import ByteLevel

    alphabet = sorted(ByteLevel.alphabet())
    pairs = list(product(LETTERS, LETTERS))
    room = vocab_size - len(SPECIAL) - len(alphabet) - len(pairs)
    if not 0 <= room <= len(LETTERS) ** 3:
        raise ValueError(f"a vocabulary of {vocab_size} is not between 4,355 and 266,499")
    triples = list(islice(product(LETTERS, LETTERS, LETTERS), room))
    words = [*SPECIAL, *alphabet, *("".join(pair) for pair in pairs), *("".join(triple) for triple in triples)]
    merges = [f"{a} {b}" for a, b in pairs] + [f"{a}{b} {c}" for a, b, c in triples]
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    special = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    return json.dumps(
        {
            "version": "1.0",
            "truncation": None,
            "padding": None,
            "added_tokens": [{"id": i, "content": word} | special for i, word in enumerate(SPECIAL)],
            "normalizer": None,
            "pre_tokenizer": byte_level,
            "post_processor": None,
            "decoder": byte_level,
            "model": {
                "type": "BPE",
                "dropout": None,
                "unk_token": None,
                "continuing_subword_prefix": None,
                "end_of_word_suffix": None,
                "fuse_unk": False,
                "byte_fallback": False,
                "vocab": {word: i for i, word in enumerate(words)},
                "merges": merges,
            },
        }
    )
