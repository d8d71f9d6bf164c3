"""What a target writes, token by token against the whole sequence, and the pool that keeps it."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch

from tandem.compile.train.drafter.writing import Pool, write
from tandem.errors import UsageError
from tests.compile.train.drafter.toys import toy_target

PROMPTS = [np.array(ids, np.int64) for ids in ([3], [5, 9, 2, 7], list(range(20, 31)))]


def test_greedy_text_is_the_likeliest_behind_each_prompt() -> None:
    target = toy_target()
    written = write(target, PROMPTS, 24)
    assert written.ids.shape == (3, 24) and written.start.tolist() == [1, 4, 11]
    for text, prompt in zip(written.ids, PROMPTS, strict=True):
        assert text[: len(prompt)].tolist() == prompt.tolist()
    logits = target.logits(target.sequence(torch.from_numpy(written.ids))[1])
    for row, start in enumerate(written.start):
        assert written.ids[row, start:].tolist() == logits[row, start - 1 : -1].argmax(-1).tolist()


def test_drawn_text_follows_the_targets_probabilities() -> None:
    """Many draws of one token behind one prompt; every other text is greedy."""
    target, count = toy_target(), 4000
    written = write(target, [PROMPTS[0]] * count, 2, temperatures=(0.0, 0.8), seed=3)
    logits = target.logits(target.sequence(torch.tensor([[3]]))[1])[0, 0]
    assert set(written.ids[0::2, 1].tolist()) == {int(logits.argmax())}
    wanted, drawn = (logits / 0.8).softmax(-1).numpy(), Counter(written.ids[1::2, 1].tolist())
    found = np.array([drawn[token] for token in range(len(wanted))]) / (count / 2)
    assert np.abs(found - wanted).max() < 4 * (0.25 / (count / 2)) ** 0.5


def test_a_prompt_as_long_as_the_text_is_the_text() -> None:
    written = write(toy_target(), PROMPTS, 8)
    assert written.ids[2].tolist() == PROMPTS[2][:8].tolist() and written.start[2] == 8


def ignore(line: str) -> None:
    pass


def test_a_pool_that_is_stopped_goes_on_to_the_same_texts(tmp_path: Path) -> None:
    options = {"batch": 2, "length": 9, "seed": 5, "say": ignore}
    target = toy_target()
    Pool(tmp_path / "whole").fill(target, PROMPTS, texts=6, **options)
    Pool(tmp_path / "parts").fill(target, PROMPTS, texts=2, **options)
    (tmp_path / "parts/written-00001.part").write_bytes(b"half")  # a command that was killed
    shares: list[float] = []
    Pool(tmp_path / "parts").fill(target, PROMPTS, texts=6, **options, advance=shares.append)
    whole, parts = (Pool(tmp_path / name).read(9) for name in ("whole", "parts"))
    np.testing.assert_array_equal(parts.ids, whole.ids)
    np.testing.assert_array_equal(parts.start, whole.start)
    assert whole.ids.shape == (6, 9) and sum(shares) == pytest.approx(1.0)
    with pytest.raises(UsageError, match="texts of 9 tokens, wanted 10; give the same --context, or remove"):
        Pool(tmp_path / "parts").read(10)
