"""Thoughts by definition: whole texts are looked at from the start for every token. Slow, and apart from the code."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from tandem.runtime.request import Request
from tandem.runtime.sampling import draw
from tests.fakes import marks, row_logits

WORDS = (
    b"</think>", b"<think>", b"</", b"think", b">", b"</think>\n\nso", b"<", b" ", b"\n", b"a", b"b", b"<think>a",
    b"k></thi", b"nk>", b"c", b"d", b"\n</thi", b"e", b"f", b"\xf0\x9f", b"\x98\x80", b"", b"</think",
)  # fmt: skip
"""What the 23 ids of the fakes' vocabulary stand for, where it matters."""
USUAL, BARE = (8, 9, 2, 3, 4, 8), (8, 0)
"""Closing texts in those ids: "\\na</think>\\n" and "\\n</think>"."""


@dataclass(frozen=True)
class Standing:
    """Whether a block is open, how many thoughts it has, and how many tokens of the answer are reasoning."""

    is_open: bool
    thoughts: int
    reasoning: int
    first: int = 0
    """Where in the answer the first thought stands."""


def standing(prompt: Sequence[int], answer: Sequence[int], words: Callable[[int], bytes]) -> Standing:
    """That of a text."""

    def text(end: int) -> bytes:
        return b"".join(words(token) for token in answer[:end])

    opened, inside = 0, 0
    if not re.search(rb"<think>\s*\Z", b"".join(map(words, prompt))):
        found = re.match(rb"<think>", text(len(answer)))
        if not found:
            return Standing(False, 0, 0)
        inside = found.end()
        opened = next(n for n in range(len(answer) + 1) if len(text(n)) >= inside)
    closed = next((n for n in range(opened, len(answer) + 1) if b"</think>" in text(n)[inside:]), None)
    if closed is None:
        return Standing(True, len(answer) - opened, len(answer), opened)
    return Standing(False, max(closed - 1 - opened, 0), closed, opened)


def forced(
    prompt: Sequence[int],
    answer: Sequence[int],
    budget: int | None,
    loops: Callable[[Sequence[int]], bool] = lambda thoughts: False,
    words: Callable[[int], bytes] = WORDS.__getitem__,
    usual: Sequence[int] = USUAL,
    bare: Sequence[int] = BARE,
) -> int | None:
    """The id that must follow, None if any may. `loops` is asked of all thoughts so far, one or more."""
    for n in range(len(answer) + 1):
        found = standing(prompt, answer[:n], words)
        spent = budget is not None and found.thoughts >= budget
        if found.is_open and (spent or (found.thoughts and loops(answer[found.first : n]))):
            closing = usual if found.thoughts else bare
            return closing[len(answer) - n] if len(answer) - n < len(closing) else None
    return None


def thoughtful_text(request: Request, vocab_size: int, context_length: int, budget: int | None) -> list[int]:
    """The answer of `tests.fakes`' arithmetic under a budget."""
    answer, below, prompt = list[int](), marks(request.prompt), list(request.prompt)
    while len(answer) < min(request.max_tokens, context_length - len(prompt)):
        must = forced(prompt, answer, budget)
        logits = row_logits(below[-1], vocab_size)
        if must is not None:
            logits = np.where(np.arange(vocab_size) == must, logits, np.float32(-np.inf))
        sampling = request.sampling
        answer.append(draw(logits, sampling, sampling.seed or 0, len(prompt) + len(answer)))
        below = marks([*prompt, *answer])
        if answer[-1] in request.stop_ids:
            break
    return answer
