"""A run that can stop at any step and go on as if it had not: everything that the next step depends on, in one file."""

from __future__ import annotations

import os
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import nn

from tandem.errors import UsageError


@dataclass(frozen=True, slots=True)
class Settings:
    """What decides a run's loss curve. Of `steps` and `minutes` the first that is given sets how long it is.

    `batch` and `micro_batch` are sequences of `length` tokens; `draft_weight` is the share of each draft depth's loss.
    """

    batch: int = 48
    micro_batch: int = 48
    length: int = 2048
    lr: float = 4e-3
    weight_decay: float = 0.1
    warmup: int = 200
    decay_share: float = 0.4
    draft_depth: int = 2
    draft_weight: float = 0.2
    clip: float = 1.0
    seed: int = 0
    steps: int | None = None
    minutes: float | None = None

    @property
    def ahead(self) -> int:
        """Tokens that a window needs behind its own."""
        return 1 + self.draft_depth

    @property
    def step_tokens(self) -> int:
        """Tokens that a step learns from."""
        return self.batch * self.length


@dataclass(slots=True)
class Progress:
    """How far a run is. `total` steps are known from the start, or once its speed has been measured."""

    step: int = 0
    total: int | None = None
    seconds: float = 0.0
    history: list[dict[str, float]] = field(default_factory=list)

    @property
    def done(self) -> bool:
        return self.total is not None and self.step >= self.total


Identity = dict[str, Any]
"""What must be the same for a run to go on: settings, config and corpus."""


def identity(settings: Settings, config: dict[str, Any], corpus: str) -> Identity:
    return {"settings": asdict(settings), "config": config, "corpus": corpus}


def save(
    path: Path, run: Identity, model: nn.Module, optimisers: list[torch.optim.Optimizer], progress: Progress
) -> None:
    """Whole or not at all: a run that is killed here leaves the state it saved before."""
    content = {
        "run": run,
        "model": model.state_dict(),
        "optimisers": [optimiser.state_dict() for optimiser in optimisers],
        "progress": asdict(progress),
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f"{path.name}.part")
    torch.save(content, part)
    os.replace(part, path)


def restore(path: Path, run: Identity, model: nn.Module, optimisers: list[torch.optim.Optimizer]) -> Progress:
    """The progress saved at `path`, with model and optimisers as they were. UsageError if the run is another."""
    # On the CPU: what belongs elsewhere is moved there by its owner, and counts of steps stay where they are read.
    content = torch.load(path, map_location="cpu", weights_only=True)
    for part, wanted in run.items():
        if (found := content["run"][part]) != wanted:
            fields = wanted if isinstance(wanted, dict) else {part: wanted}
            before = found if isinstance(found, dict) else {part: found}
            changed = [
                f"{key} = {before.get(key)!r}, now {fields[key]!r}" for key in fields if before.get(key) != fields[key]
            ]
            raise UsageError(
                f"{path}: belongs to another run ({'; '.join(changed)}); give the same options, or remove it"
            )
    model.load_state_dict(content["model"])
    for optimiser, state in zip(optimisers, content["optimisers"], strict=True):
        optimiser.load_state_dict(state)
    return Progress(**content["progress"])
