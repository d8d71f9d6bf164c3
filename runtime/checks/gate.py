"""Measures what a profile of few bits costs: its programs beside those of a reference, over the same token ids.

A process of its own, like `staged`, with the same JSON lines. Knows no tokenizer: ids come with the request.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np

from tandem.runtime.checks.quality import Reading, answer, pages_wanted, read, unique_share
from tandem.runtime.checks.staged import Staged, say_step

Windows = list[list[int]]


class Request(msgspec.Struct, forbid_unknown_fields=True):
    """Texts are cut into windows that fit the context. `confident_gap` is in logits."""

    subject: Staged
    reference: Staged
    texts: dict[str, Windows]
    prompts: list[list[int]]
    stop_ids: list[int]
    answer_tokens: int
    confident_gap: float


@dataclass(frozen=True, slots=True)
class Take:
    """What one set of programs made of the texts and prompts."""

    readings: dict[str, Reading]
    answers: list[list[int]]


def take(staged: Staged, request: Request, name: str) -> Take:
    """Reads and answers everything with `staged`, which is closed again: the two never share the memory."""
    windows = [ids for text in request.texts.values() for ids in text]
    rows = sum(len(ids) - 1 for ids in windows)
    executor = staged.open(pages_wanted(staged.geometry, windows, request.prompts, request.answer_tokens))
    read_rows = 0

    def advance(num_rows: int) -> None:
        nonlocal read_rows
        read_rows += num_rows
        say_step(f"quality: {name}, {min(100, 100 * read_rows // rows)} % of the texts")

    try:
        readings = {text: read(executor, ids, advance) for text, ids in request.texts.items()}
        say_step(f"quality: {name}, free answers")
        answers = answer(executor, request.prompts, max_tokens=request.answer_tokens, stop_ids=request.stop_ids)
    finally:
        executor.close()
    return Take(readings, answers)


def figures(subject: Take, reference: Take, *, confident_gap: float, stop_ids: Sequence[int]) -> dict[str, Any]:
    """`texts`, `agreement` and `generation` as the manifest's quality record has them, not rounded yet."""
    ours, theirs = (np.concatenate([r.choice for r in take.readings.values()]) for take in (subject, reference))
    confident = np.concatenate([r.gap for r in reference.readings.values()]) >= confident_gap
    equal = ours == theirs
    texts = [
        {"name": name, "tokens": len(r.choice), "loss": subject.readings[name].loss, "reference_loss": r.loss}
        for name, r in reference.readings.items()
    ]
    agreement = {
        "positions": len(equal),
        "equal": int(equal.sum()),
        "confident": int(confident.sum()),
        "confident_equal": int((equal & confident).sum()),
    }
    generation: dict[str, Any] = {"prompts": len(reference.answers)}
    for prefix, answers in (("", subject.answers), ("reference_", reference.answers)):
        generation[f"{prefix}tokens"] = sum(map(len, answers))
        generation[f"{prefix}stops"] = sum(ids[-1] in stop_ids for ids in answers)
        generation[f"{prefix}unique_4grams"] = unique_share(answers)
    return {"texts": texts, "agreement": agreement, "generation": generation}


def main() -> None:
    request = msgspec.json.decode(sys.stdin.buffer.read(), type=Request)
    reference = take(request.reference, request, "reference")
    subject = take(request.subject, request, "profile")
    result = figures(subject, reference, confident_gap=request.confident_gap, stop_ids=request.stop_ids)
    print(msgspec.json.encode({"result": result}).decode(), flush=True)


if __name__ == "__main__":
    main()
