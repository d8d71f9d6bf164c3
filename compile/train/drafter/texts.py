"""What a drafter learns from besides the target: given text as token ids, and prompts for the target to go on from.

Knows nothing of models: a tokenizer and a chat template are all of the target that is needed.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from jinja2 import TemplateError
from jinja2.sandbox import ImmutableSandboxedEnvironment
from tokenizers import Tokenizer

from tandem.compile.checkpoints.base import Checkpoint
from tandem.compile.checkpoints.tokenizer import load_tokenizer
from tandem.compile.train.chat import exchanges
from tandem.compile.train.documents import CHAT, DOCS, Collector
from tandem.compile.train.packages import Package
from tandem.errors import CheckpointError, UsageError

CODE = "code"
DOMAINS = (CODE, DOCS, CHAT)
"""Code and documentation, cut anywhere, are gone on with; chat is a question in the target's template."""
PROMPT_TOKENS = 64
"""What a prompt of code or documentation has at most."""
Ids = np.ndarray
"""Token ids, int64."""


@dataclass(frozen=True, slots=True)
class Texts:
    """Training text by domain as one run of ids, and prompts by domain; held-out prompts are of other files."""

    given: Ids
    prompts: dict[str, list[Ids]]
    held_out: dict[str, list[Ids]]


def read_texts(checkpoint: Checkpoint, packages: Iterable[Package], *, package_bytes: int, longest: int) -> Texts:
    """Texts of packages in the target's tokens, prompts of at most `longest`.

    UsageError where there is too little of them to learn from.
    """
    words = load_tokenizer(checkpoint.tokenizer_json, checkpoint.origin)
    opening = np.array(words.encode("").ids, np.int64)  # what the tokenizer puts before every text, if anything
    given: list[Ids] = []
    prompts: dict[bool, dict[str, list[Ids]]] = {held: {domain: [] for domain in DOMAINS} for held in (False, True)}
    for document in Collector(package_bytes).collect(packages):
        domain = DOCS if document.domain == DOCS else CODE
        ids = encode(words, document.text)
        if not document.held_out:
            given.append(ids)
        prompts[document.held_out][domain] += _prompts(opening, ids, min(PROMPT_TOKENS, longest))
        if domain == CODE and checkpoint.chat_template is not None:
            questions = [encode(words, ask(checkpoint, question)) for question, _ in exchanges(document)]
            prompts[document.held_out][CHAT] += [ids for ids in questions if len(ids) <= longest]
    if not all(any(found.values()) for found in prompts.values()):
        raise UsageError("the given packages have no text to learn from or none to hold out; give more with --folder")
    return Texts(np.concatenate(given), prompts[False], prompts[True])


def encode(words: Tokenizer, text: str) -> Ids:
    """Special tokens in `text` are what they say, as in a chat template."""
    return np.array(words.encode(text, add_special_tokens=False).ids, np.int64)


def ask(checkpoint: Checkpoint, question: str) -> str:
    """A user's question in the checkpoint's chat template, up to where the answer begins."""
    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
    try:
        return environment.from_string(checkpoint.chat_template or "").render(
            messages=[{"role": "user", "content": question}],
            add_generation_prompt=True,
            bos_token=checkpoint.bos_token or "",
            eos_token=checkpoint.eos_token or "",
        )
    except TemplateError as error:
        raise CheckpointError(f"{checkpoint.origin}: its chat template cannot be filled in ({error})") from error


def _prompts(opening: Ids, ids: Ids, length: int) -> Sequence[Ids]:
    """A prompt from the head of a text and one from its middle, `length` tokens at most."""
    room = length - len(opening)
    cut = [ids[start : start + room] for start in sorted({0, len(ids) // 2})]
    return [np.concatenate((opening, prompt)) for prompt in cut if len(prompt) > room // 2]


def unseen_id(texts: Texts, vocab_size: int) -> int:
    """The id that training text holds least often, the highest of several: what a masked row may stand on."""
    counts = np.bincount(texts.given, minlength=vocab_size)
    for prompts in texts.prompts.values():
        for prompt in prompts:
            counts += np.bincount(prompt, minlength=vocab_size)
    return int(vocab_size - 1 - counts[::-1].argmin())
