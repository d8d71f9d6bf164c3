"""What a step of training a whole model is: windows of text, the model's loss and a share of each draft depth's."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

from tandem.compile.train.batches import Batches
from tandem.compile.train.loop import Loop
from tandem.compile.train.model import Model
from tandem.compile.train.objective import cross_entropy, depths
from tandem.compile.train.optimise import optimisers
from tandem.compile.train.state import Identity, Settings


class Trainer(Loop):
    """A run of a model and the layer that drafts beside it."""

    model: Model

    def __init__(
        self, model: Model, batches: Batches, settings: Settings, run: Identity, path: Path, *, compiled: bool = False
    ) -> None:
        names = ["loss", *(f"draft_{depth}" for depth in range(1, settings.draft_depth + 1))]
        super().__init__(model, names, optimisers(model, settings.lr, settings.weight_decay), settings, run, path)
        self.batches, self.settings = batches, settings
        shares = [1.0, *[settings.draft_weight] * settings.draft_depth]
        self._weights = torch.tensor(shares, device=self.device)
        self._entropy: Callable[[Tensor, Tensor, Tensor], Tensor] = cross_entropy
        if compiled:
            self._entropy = torch.compile(cross_entropy, dynamic=False)
            for layer in (*model.model.layers, *model.mtp.layers):
                layer.compile(dynamic=False)

    def gradients(self, step: int) -> Tensor:
        ids = self.batches.at(step)
        losses = torch.zeros(self.settings.ahead, device=self.device)
        for part in torch.split(ids, self.settings.micro_batch):
            losses += self._accumulate(part) * (len(part) / len(ids))
        return losses

    def _accumulate(self, ids: Tensor) -> Tensor:
        settings, share = self.settings, len(ids) / self.batches.batch
        head = self.model.head_weight
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.device.type == "cuda"):
            losses = torch.stack([self._entropy(h, head, t) for h, t in depths(self.model, ids, settings.draft_depth)])
        torch.autograd.backward((losses * self._weights).sum() * share)
        return losses.detach()
