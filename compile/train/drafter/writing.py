"""Texts that the target writes itself: a pool of token ids on disk, made in batches, that a later command adds to.

Only ids are kept. What the target thought of them is worked out again in training: for a target small enough for one
device a forward pass is cheaper than reading its streams back from disk (some 4 KB a token for SmolLM2, of 4 bytes).
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from tandem.compile.train.drafter.target import Target
from tandem.compile.train.drafter.texts import Ids
from tandem.errors import UsageError

TEMPERATURES = (0.0, 0.8)
"""Half of a batch is written greedily, half drawn: a greedy text of a small model soon repeats itself."""


@dataclass(frozen=True, slots=True)
class Written:
    """Texts of equal length; the target wrote what stands from `start` on."""

    ids: np.ndarray  # [texts, T] int64
    start: np.ndarray  # [texts] int64


def write(
    target: Target,
    prompts: Sequence[Ids],
    length: int,
    *,
    temperatures: Sequence[float] = (0.0,),
    seed: int = 0,
    advance: Callable[[float], None] = lambda share: None,
) -> Written:
    """The prompts' texts up to `length` tokens, all in one batch, row i at temperatures[i % their number].

    A token at a time from the first on, so prompts may differ in length. An end-of-text is a token like any other.
    """
    device, count = target.device, len(prompts)
    ids = torch.zeros(count, length, dtype=torch.long, device=device)
    start = torch.tensor([min(len(prompt), length) for prompt in prompts], device=device)
    for row, prompt in enumerate(prompts):
        ids[row, : start[row]] = torch.from_numpy(np.asarray(prompt[:length])).to(device)
    heat = torch.tensor([temperatures[row % len(temperatures)] for row in range(count)], device=device)[:, None]
    random = torch.Generator(device).manual_seed(seed)
    target.begin(count, length)
    for position in range(length - 1):
        logits = target.logits(target.step(ids[:, position])).float()
        chosen = _chosen(logits, heat, random)
        ids[:, position + 1] = torch.where(position + 1 < start, ids[:, position + 1], chosen)
        advance(1 / (length - 1))
    target.end()
    return Written(ids.cpu().numpy(), start.cpu().numpy())


def _chosen(logits: Tensor, heat: Tensor, random: torch.Generator) -> Tensor:
    """[texts]: the likeliest where `heat` is zero, else a draw at that temperature (the largest of logits + noise)."""
    noise = -torch.empty_like(logits).exponential_(generator=random).log_()
    return (logits + heat * noise).argmax(-1)


class Pool:
    """Written texts in files of one batch each below `folder`; only whole files are ever there."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def files(self) -> list[Path]:
        return sorted(self.folder.glob("written-*.npz"))

    def fill(
        self,
        target: Target,
        prompts: Sequence[Ids],
        *,
        texts: int,
        batch: int,
        length: int,
        seed: int,
        say: Callable[[str], None],
        advance: Callable[[float], None] = lambda share: None,
    ) -> None:
        """Writes until there are `texts`; what is there counts. Batch n is the same whenever it is written."""
        self.folder.mkdir(parents=True, exist_ok=True)
        batches, there = -(-texts // batch), len(self.files())
        advance(min(there, batches) / batches)
        for number in range(there, batches):
            begun = time.monotonic()
            chosen = np.random.default_rng((seed, number)).integers(len(prompts), size=batch)
            written = write(
                target,
                [prompts[i] for i in chosen],
                length,
                temperatures=TEMPERATURES,
                seed=seed * 1_000_003 + number,
                advance=lambda share: advance(share / batches),
            )
            part = self.folder / f"written-{number:05}.part"
            with part.open("wb") as file:
                np.savez(file, ids=written.ids.astype(np.uint32), start=written.start)
            os.replace(part, self.folder / f"written-{number:05}.npz")
            rate = batch * (length - 1) / (time.monotonic() - begun)
            say(f"written {(number + 1) * batch} of {batches * batch} texts of {length} tokens  {rate:.0f} tokens/s")

    def read(self, length: int) -> Written:
        """All texts there are. UsageError if they are of another length."""
        ids, start = [], []
        for path in self.files():
            with np.load(path) as content:
                ids.append(content["ids"].astype(np.int64))
                start.append(content["start"])
            if ids[-1].shape[1] != length:
                raise UsageError(
                    f"{path}: texts of {ids[-1].shape[1]} tokens, wanted {length}; give the same --context, or remove "
                    f"{self.folder}"
                )
        return Written(np.concatenate(ids), np.concatenate(start))
