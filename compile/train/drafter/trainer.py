"""What a step of training a drafter is: texts, blocks in them, the target's thoughts worked out on the way."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor, nn

from tandem.compile.train.drafter.model import Drafter
from tandem.compile.train.drafter.objective import NAMES, losses, total
from tandem.compile.train.drafter.samples import Samples
from tandem.compile.train.drafter.settings import Settings
from tandem.compile.train.drafter.target import Target
from tandem.compile.train.loop import Loop
from tandem.compile.train.optimise import optimisers
from tandem.compile.train.state import Identity


class Trainer(Loop):
    """A run of a drafter; the target only thinks."""

    model: Drafter

    def __init__(
        self, drafter: Drafter, target: Target, samples: Samples, settings: Settings, run: Identity, path: Path
    ) -> None:
        super().__init__(drafter, NAMES, make_optimisers(drafter, settings), settings, run, path)
        self.target, self.samples, self.settings = target, samples, settings

    def gradients(self, step: int) -> Tensor:
        settings, found = self.settings, torch.zeros(len(NAMES), device=self.device)
        ids, anchors = (part.to(self.device) for part in self.samples.at(step))
        parts = (torch.split(whole, settings.micro_batch) for whole in (ids, anchors))
        for texts, blocks in zip(*parts, strict=True):
            share = len(texts) / len(ids)
            with torch.autocast(self.device.type, torch.bfloat16, enabled=self.device.type == "cuda"):
                part = losses(self.model, self.target, texts, blocks, settings)
            torch.autograd.backward(total(part, settings) * share)
            found += part.detach() * share
        return found


def make_optimisers(drafter: nn.Module, settings: Settings) -> list[torch.optim.Optimizer]:
    """`muon`: Muon over matrices, AdamW over the rest; `adamw`: AdamW over all."""
    if settings.optimiser == "muon":
        return optimisers(drafter, settings.lr, settings.weight_decay)
    rate, decay = settings.lr, settings.weight_decay
    return [torch.optim.AdamW(drafter.parameters(), lr=rate, betas=(0.9, 0.95), eps=1e-8, weight_decay=decay)]
