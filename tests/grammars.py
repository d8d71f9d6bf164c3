"""A small vocabulary with tokens of several bytes, and the text that an answer under a grammar has by definition.

That is a fresh llguidance matcher for each token, and the ids it allows tried one by one. Knows nothing of
`runtime.grammar`.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence

import numpy as np
from llguidance import LLMatcher, LLTokenizer
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

from tandem.runtime.request import Request
from tandem.runtime.sampling import draw
from tests.fakes import mark, marks, row_logits
from tests.penalties_reference import penalized

INTEGER = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"], "additionalProperties": False}
"""The schema of BUG-45."""

PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 6},
        "mood": {"enum": ["calm", "calmer", "wild"]},
        "ages": {"type": "array", "items": {"type": "integer", "minimum": 0, "maximum": 99}, "maxItems": 3},
    },
    "required": ["name", "mood", "ages"],
    "additionalProperties": False,
}
SPACED = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
END, VOCAB = 0, 330
"""The end token, and ids of a model that has some more than its tokenizer."""


@functools.cache
def tokenizer() -> Tokenizer:
    """A byte-level BPE of 320 tokens, trained on JSON; id 0 is its end token."""
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    made.decoder = decoders.ByteLevel()
    text = '{"name": "Ann", "mood": "calm", "ages": [12, 34, 5]} {"name": "Bo", "mood": "wild", "ages": []} {"a": 17}'
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    made.train_from_iterator(
        [text, '{"a": 1} yes no maybe'],
        trainers.BpeTrainer(
            vocab_size=320,
            min_frequency=1,
            special_tokens=[AddedToken("<|end|>", special=True)],
            initial_alphabet=alphabet,
            show_progress=False,
        ),
    )
    assert made.get_vocab_size() == 320 and made.token_to_id("<|end|>") == END
    return made


@functools.cache
def vocabulary() -> LLTokenizer:
    return LLTokenizer(tokenizer().to_str(), n_vocab=VOCAB, eos_token=END)


def json_source(schema: Mapping[str, object]) -> str:
    return LLMatcher.grammar_from_json_schema({**schema}, defaults=SPACED)


def ids(text: str) -> list[int]:
    """Token ids of `text`."""
    return tokenizer().encode(text).ids


def spelled(text: str) -> list[int]:
    """A token for each byte of `text`."""
    return [token for character in text for token in ids(character)]


def text_of(tokens: Sequence[int]) -> str:
    return tokenizer().decode(list(tokens))


def legal(source: str, said: Sequence[int]) -> list[int]:
    """Ids that may follow `said` in an answer under `source`."""
    matcher = LLMatcher(vocabulary(), source, log_level=0)
    assert not said or matcher.consume_tokens(list(said)), matcher.get_error()
    mask = matcher.compute_bitmask()
    assert not matcher.is_error(), matcher.get_error()
    return [token for token in range(VOCAB) if mask[token // 8] >> token % 8 & 1]


def constrained_text(request: Request, source: str, context_length: int) -> list[int]:
    """The answer by definition: no lanes, rows, drafts or rollbacks."""
    text, below, sampling = list(request.prompt), marks(request.prompt), request.sampling
    while len(text) < min(len(request.prompt) + request.max_tokens, context_length):
        logits, answer = row_logits(below[-1], VOCAB), text[len(request.prompt) :]
        if not request.penalties.neutral:
            logits = penalized(logits, request.penalties, request.prompt, answer, request.stop_ids)
        allowed = legal(source, answer)
        level = all(np.isneginf(logits[token]) for token in allowed)
        values = [0.0 if level else logits[i] if i in allowed else -np.inf for i in range(VOCAB)]
        values = [value if i in allowed else -np.inf for i, value in enumerate(values)]
        text.append(draw(np.array(values, np.float32), sampling, sampling.seed or 0, len(text)))
        below.append(mark(below, text[-1], len(below)))
        if text[-1] in request.stop_ids:
            break
    return text[len(request.prompt) :]
