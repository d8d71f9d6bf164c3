"""Which texts and which blocks of them a step sees: it follows from seed and step alone."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from tandem.compile.train.drafter.settings import Settings
from tandem.compile.train.drafter.texts import Ids
from tandem.compile.train.drafter.writing import Written
from tandem.errors import UsageError


class Samples:
    """Texts that the target wrote and windows of given text, with anchors at random.

    Of what the target wrote only blocks behind the prompt are drafted, as in serving.
    """

    def __init__(self, written: Written, given: Ids, settings: Settings, block_size: int) -> None:
        length, room = settings.length, settings.length - block_size
        self._written, self._given, self._settings, self._room = written, given, settings, room
        fit = np.flatnonzero(room - written.start >= settings.blocks)
        self._fit = fit
        if not len(fit) or len(given) <= length or room < settings.blocks:
            raise UsageError(
                f"{settings.blocks} blocks of {block_size} do not fit into texts of {length} tokens ({len(fit)} of "
                f"those written, {len(given)} given tokens); raise --context, lower --blocks, or give more text"
            )

    def at(self, step: int) -> tuple[Tensor, Tensor]:
        """ids [batch, T] and anchors [batch, blocks], positions in ascending order; int64."""
        settings, random = self._settings, np.random.default_rng((self._settings.seed, step))
        texts, anchors = [], []
        for _ in range(settings.batch):
            if random.random() < settings.given:
                begin, first = random.integers(len(self._given) - settings.length), 1
                texts.append(self._given[begin : begin + settings.length])
            else:
                row = random.choice(self._fit)
                first = int(self._written.start[row])
                texts.append(self._written.ids[row])
            places = random.choice(np.arange(first, self._room + 1), settings.blocks, replace=False)
            anchors.append(np.sort(places))
        return torch.from_numpy(np.stack(texts)), torch.from_numpy(np.stack(anchors))
