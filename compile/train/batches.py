"""Which tokens a step sees: windows of the training text in an order that follows from seed and step alone."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from tandem.compile.train.corpus import Ids
from tandem.errors import UsageError


class Batches:
    """Windows of `length` tokens and the `ahead` tokens behind them; each epoch cuts and orders them anew.

    Windows run over document ends; the separator between documents is all the model is told of them.
    """

    def __init__(self, ids: Ids, *, batch: int, length: int, ahead: int, seed: int, device: torch.device) -> None:
        self.batch, self.length, self.ahead, self.seed = batch, length, ahead, seed
        self.windows = (len(ids) - ahead) // length - 1  # one less, so that an epoch may begin anywhere in the first
        self.per_epoch = self.windows // batch
        if self.per_epoch < 1:
            raise UsageError(
                f"{len(ids)} training tokens are less than one batch of {batch} x {length}; "
                "lower --batch or --context, or build a larger corpus"
            )
        self._ids = torch.from_numpy(ids.astype(np.int32)).to(device)
        self._epoch, self._starts = -1, torch.empty(0)

    def at(self, step: int) -> Tensor:
        """Ids [batch, length + ahead] of a step, int64."""
        epoch, index = divmod(step, self.per_epoch)
        if epoch != self._epoch:
            random = np.random.default_rng((self.seed, epoch))
            offset = random.integers(self.length)
            starts = random.permutation(self.windows) * self.length + offset
            self._epoch, self._starts = epoch, torch.from_numpy(starts).to(self._ids.device)
        rows = self._starts[index * self.batch : (index + 1) * self.batch]
        reach = torch.arange(self.length + self.ahead, device=rows.device)
        return self._ids[rows[:, None] + reach].long()
