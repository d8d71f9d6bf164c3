"""What the gate reads: texts of our own as windows of token ids, and prompts, by the checkpoint's own tokenizer.

They were written for this purpose and lie beside this file. Knows nothing of weights.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tandem.compile.checkpoints.base import Checkpoint
from tandem.compile.checkpoints.tokenizer import load_tokenizer
from tandem.errors import CheckpointError

if TYPE_CHECKING:
    from tokenizers import Tokenizer

TEXTS = ("prose", "code")
TEXT_TOKENS = 2048
"""Tokens of each text that are predicted. A context that is shorter reads them in windows."""
ANSWER_TOKENS = 128


@dataclass(frozen=True, slots=True)
class Material:
    """`texts` are windows of at most the context and one token more, which is only predicted. A prompt and
    `answer_tokens` fit the context together."""

    texts: dict[str, list[list[int]]]
    prompts: list[list[int]]
    answer_tokens: int


def make_material(checkpoint: Checkpoint, context_length: int, vocab_size: int) -> Material:
    """CheckpointError for a tokenizer that does not fit the model."""
    tokenizer = load_tokenizer(checkpoint.tokenizer_json, checkpoint.origin)
    tokenizer.no_truncation()
    tokenizer.no_padding()
    texts = {name: windows(_encode(tokenizer, _own(name), True), context_length) for name in TEXTS}
    answer = min(ANSWER_TOKENS, context_length // 2)
    prompts = [_prompt(tokenizer, checkpoint, line)[answer - context_length :] for line in _own("prompts").splitlines()]
    highest = max(max(ids) for ids in [*prompts, *texts["prose"], *texts["code"]])
    if highest >= vocab_size:
        raise CheckpointError(
            f"{checkpoint.origin}: the tokenizer gives id {highest}, but the model knows {vocab_size}; "
            "do tokenizer and weights belong together?"
        )
    return Material(texts, prompts, answer)


def windows(ids: list[int], context_length: int) -> list[list[int]]:
    """The first TEXT_TOKENS predictions of a text, `context_length` in a window at most.

    A window's last token is the next one's first, so that each is predicted once.
    """
    kept = ids[: TEXT_TOKENS + 1]
    size = min(context_length, TEXT_TOKENS)
    return [kept[i : i + size + 1] for i in range(0, len(kept) - 1, size)]


def _prompt(tokenizer: Tokenizer, checkpoint: Checkpoint, question: str) -> list[int]:
    """The question as a chat asks it; as a bare text where there is no template, or none that takes it."""
    chat = _chat(checkpoint, question)
    return _encode(tokenizer, question, True) if chat is None else _encode(tokenizer, chat, False)


def _encode(tokenizer: Tokenizer, text: str, special: bool) -> list[int]:
    return tokenizer.encode(text, add_special_tokens=special).ids


def _chat(checkpoint: Checkpoint, question: str) -> str | None:
    if checkpoint.chat_template is None:
        return None
    from jinja2 import TemplateError
    from jinja2.ext import loopcontrols
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols])
    given = {
        "messages": [{"role": "user", "content": question}],
        "add_generation_prompt": True,
        "bos_token": checkpoint.bos_token or "",
        "eos_token": checkpoint.eos_token or "",
    }
    try:
        return environment.from_string(checkpoint.chat_template).render(given)
    except (TemplateError, TypeError, ValueError, LookupError, ArithmeticError, RecursionError):
        return None  # a template that asks for more than a question: its text is not what is measured here


def _own(name: str) -> str:
    return (Path(__file__).parent / f"{name}.txt").read_text(encoding="utf-8")
