"""The training loop: steps until the run is done or its command's time is up, with a line of progress now and then."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

from tandem.compile.train.batches import Batches
from tandem.compile.train.model import Model
from tandem.compile.train.objective import cross_entropy, depths
from tandem.compile.train.optimise import optimisers, rate
from tandem.compile.train.state import Identity, Progress, Settings, restore, save
from tandem.errors import TandemError

REPORT_EVERY, SAVE_EVERY = 20, 1000
# A run that is to last some minutes counts how many steps fit from these reports on: before the first, things compile.
MEASURE_FROM, MEASURE_TO = 2, 6


class Trainer:
    """A run on one device. `train` may be called again, also by a later process, until `progress.done`."""

    def __init__(
        self, model: Model, batches: Batches, settings: Settings, run: Identity, path: Path, *, compiled: bool = False
    ) -> None:
        self.model, self.batches, self.settings, self.run, self.path = model, batches, settings, run, path
        self.device = next(model.parameters()).device
        self.optimisers = optimisers(model, settings.lr, settings.weight_decay)
        self._base_rates = [[group["lr"] for group in optimiser.param_groups] for optimiser in self.optimisers]
        self.progress = Progress(total=settings.steps)
        if path.is_file():
            self.progress = restore(path, run, model, self.optimisers)
        shares = [1.0, *[settings.draft_weight] * settings.draft_depth]
        self._weights = torch.tensor(shares, device=self.device)
        self._entropy: Callable[[Tensor, Tensor, Tensor], Tensor] = cross_entropy
        if compiled:
            self._entropy = torch.compile(cross_entropy, dynamic=False)
            for layer in (*model.model.layers, *model.mtp.layers):
                layer.compile(dynamic=False)

    def train(
        self,
        say: Callable[[str], None],
        *,
        deadline: float = math.inf,
        clock: Callable[[], float] = time.monotonic,
    ) -> Progress:
        """Steps until the run is done or `clock` is past `deadline`, then saves. TandemError if a loss is no number."""
        progress, begun = self.progress, clock() - self.progress.seconds
        marks: list[tuple[int, float]] = []
        sums, since = torch.zeros(self.settings.ahead, device=self.device), progress.step
        while not progress.done:
            sums += self._step(progress.step)
            progress.step += 1
            if progress.step % REPORT_EVERY and not progress.done:
                continue
            losses = (sums / (progress.step - since)).tolist()  # waits for the device
            marks.append((progress.step, clock()))
            progress.seconds = marks[-1][1] - begun
            self._plan(marks, say)
            say(self._report(losses, marks[-2:]))
            sums.zero_()
            since = progress.step
            if marks[-1][1] >= deadline:
                break
            if progress.step % SAVE_EVERY == 0:
                self._save()
        self._save()
        return progress

    def _step(self, step: int) -> Tensor:
        """One update; the losses of the model and of each draft depth, detached."""
        settings = self.settings
        factor = rate(step, self.progress.total, warmup=settings.warmup, decay_share=settings.decay_share)
        ids = self.batches.at(step)
        parts = torch.split(ids, settings.micro_batch)
        losses = torch.zeros(settings.ahead, device=self.device)
        for part in parts:
            losses += self._accumulate(part) * (len(part) / len(ids))
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), settings.clip, foreach=True)
        for optimiser, base_rates in zip(self.optimisers, self._base_rates, strict=True):
            for group, base in zip(optimiser.param_groups, base_rates, strict=True):
                group["lr"] = base * factor
            optimiser.step()
            optimiser.zero_grad(set_to_none=True)
        return losses

    def _accumulate(self, ids: Tensor) -> Tensor:
        settings, share = self.settings, len(ids) / self.batches.batch
        head = self.model.head_weight
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.device.type == "cuda"):
            losses = torch.stack([self._entropy(h, head, t) for h, t in depths(self.model, ids, settings.draft_depth)])
        torch.autograd.backward((losses * self._weights).sum() * share)
        return losses.detach()

    def _plan(self, marks: list[tuple[int, float]], say: Callable[[str], None]) -> None:
        """Sets how many steps the run has, once its speed is known."""
        progress, minutes = self.progress, self.settings.minutes
        if progress.total is None and minutes is not None and len(marks) > MEASURE_TO:
            (first, start), (last, end) = marks[MEASURE_FROM], marks[-1]
            left = 60 * minutes - progress.seconds
            progress.total = max(progress.step + 1, progress.step + int(left * (last - first) / (end - start)))
            say(f"{progress.total} steps fit into {minutes:g} minutes")

    def _report(self, losses: list[float], marks: list[tuple[int, float]]) -> str:
        progress = self.progress
        if not all(map(math.isfinite, losses)):
            raise TandemError(f"step {progress.step}: the loss is {losses}; remove {self.path} or lower --lr")
        names = ["loss", *(f"draft_{depth}" for depth in range(1, len(losses)))]
        progress.history.append({"step": progress.step} | dict(zip(names, losses, strict=True)))
        line = f"step {progress.step}/{progress.total or '?'}  " + "  ".join(
            f"{name} {loss:.4f}" for name, loss in zip(names, losses, strict=True)
        )
        if len(marks) == 2:
            tokens = REPORT_EVERY * self.settings.batch * self.settings.length
            line += f"  {tokens / max(marks[1][1] - marks[0][1], 1e-9) / 1000:.0f}k tokens/s"
        return f"{line}  {progress.seconds:.0f} s"

    def _save(self) -> None:
        save(self.path, self.run, self.model, self.optimisers, self.progress)
