"""The training loop: steps until the run is done or its command's time is up, with a line of progress now and then.

Knows no model: what a step does is for who inherits.
"""

from __future__ import annotations

import math
import signal
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Protocol

import torch
from torch import Tensor, nn

from tandem.compile.train.optimise import rate
from tandem.compile.train.state import Identity, Progress, restore, save
from tandem.errors import TandemError

REPORT_EVERY, SAVE_EVERY = 20, 1000
# A run that is to last some minutes counts how many steps fit from these reports on: before the first, things compile.
MEASURE_FROM, MEASURE_TO = 2, 6


class Schedule(Protocol):
    """What decides how long a run is and how fast it learns."""

    @property
    def steps(self) -> int | None: ...

    @property
    def minutes(self) -> float | None: ...

    @property
    def warmup(self) -> int: ...

    @property
    def decay_share(self) -> float: ...

    @property
    def clip(self) -> float: ...

    @property
    def step_tokens(self) -> int: ...


class Loop(ABC):
    """A run on one device. `train` may be called again, also by a later process, until `progress.done`.

    `names` are those of the losses that a step gives.
    """

    def __init__(
        self,
        model: nn.Module,
        names: Sequence[str],
        optimisers: list[torch.optim.Optimizer],
        schedule: Schedule,
        run: Identity,
        path: Path,
    ) -> None:
        self.model, self.names, self.optimisers, self.run, self.path = model, names, optimisers, run, path
        self.device = next(model.parameters()).device
        self._schedule = schedule
        self._base_rates = [[group["lr"] for group in optimiser.param_groups] for optimiser in self.optimisers]
        self.progress = Progress(total=schedule.steps)
        if path.is_file():
            self.progress = restore(path, run, model, self.optimisers)

    @abstractmethod
    def gradients(self, step: int) -> Tensor:
        """Adds up the gradients of a step; its losses, detached, in the order of `names`."""

    def train(
        self,
        say: Callable[[str], None],
        *,
        deadline: float = math.inf,
        clock: Callable[[], float] = time.monotonic,
        advance: Callable[[float], None] = lambda share: None,
    ) -> Progress:
        """Steps until the run is done or `clock` is past `deadline`, then saves. TandemError if a loss is no number.

        Ctrl-C ends it behind the step it is at, saved. `advance` is told what share of the run each report added.
        """
        progress, begun = self.progress, clock() - self.progress.seconds
        marks: list[tuple[int, float]] = []
        sums, since, done = torch.zeros(len(self.names), device=self.device), progress.step, self._share()
        with _interrupt() as interrupted:
            while not progress.done and not interrupted():
                sums += self._step(progress.step)
                progress.step += 1
                if progress.step % REPORT_EVERY and not progress.done:
                    continue
                losses = (sums / (progress.step - since)).tolist()  # waits for the device
                marks.append((progress.step, clock()))
                progress.seconds = marks[-1][1] - begun
                self._plan(marks, say)
                say(self._report(losses, marks[-2:]))
                advance(self._share() - done)
                sums.zero_()
                since, done = progress.step, self._share()
                if marks[-1][1] >= deadline:
                    break
                if progress.step % SAVE_EVERY == 0:
                    self._save()
            self._save()
        return progress

    def _step(self, step: int) -> Tensor:
        """One update; the losses, detached."""
        schedule = self._schedule
        factor = rate(step, self.progress.total, warmup=schedule.warmup, decay_share=schedule.decay_share)
        losses = self.gradients(step)
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), schedule.clip, foreach=True)
        for optimiser, base_rates in zip(self.optimisers, self._base_rates, strict=True):
            for group, base in zip(optimiser.param_groups, base_rates, strict=True):
                group["lr"] = base * factor
            optimiser.step()
            optimiser.zero_grad(set_to_none=True)
        return losses

    def _share(self) -> float:
        """How much of the run is done, 0 to 1."""
        progress = self.progress
        if progress.total is not None:
            return progress.step / progress.total
        return min(1.0, progress.seconds / (60 * self._schedule.minutes)) if self._schedule.minutes else 0.0

    def _plan(self, marks: list[tuple[int, float]], say: Callable[[str], None]) -> None:
        """Sets how many steps the run has, once its speed is known."""
        progress, minutes = self.progress, self._schedule.minutes
        if progress.total is None and minutes is not None and len(marks) > MEASURE_TO:
            (first, start), (last, end) = marks[MEASURE_FROM], marks[-1]
            left = 60 * minutes - progress.seconds
            progress.total = max(progress.step + 1, progress.step + int(left * (last - first) / (end - start)))
            say(f"{progress.total} steps fit into {minutes:g} minutes")

    def _report(self, losses: list[float], marks: list[tuple[int, float]]) -> str:
        progress = self.progress
        if not all(map(math.isfinite, losses)):
            raise TandemError(f"step {progress.step}: the loss is {losses}; remove {self.path} or lower --lr")
        progress.history.append({"step": progress.step} | dict(zip(self.names, losses, strict=True)))
        line = f"step {progress.step}/{progress.total or '?'}  " + "  ".join(
            f"{name} {loss:.4f}" for name, loss in zip(self.names, losses, strict=True)
        )
        if len(marks) == 2:
            tokens = REPORT_EVERY * self._schedule.step_tokens
            line += f"  {tokens / max(marks[1][1] - marks[0][1], 1e-9) / 1000:.1f}k tokens/s"
        return f"{line}  {progress.seconds:.0f} s"

    def _save(self) -> None:
        save(self.path, self.run, self.model, self.optimisers, self.progress)


@contextmanager
def _interrupt() -> Iterator[Callable[[], bool]]:
    """Whether Ctrl-C was pressed; it is passed on when the block is left. A second one ends it at once."""
    if threading.current_thread() is not threading.main_thread():
        yield lambda: False
        return
    pressed = False
    before = signal.getsignal(signal.SIGINT)

    def note(number: int, frame: FrameType | None) -> None:
        nonlocal pressed
        pressed = True
        signal.signal(signal.SIGINT, before)

    signal.signal(signal.SIGINT, note)
    try:
        yield lambda: pressed
    finally:
        signal.signal(signal.SIGINT, before)
    if pressed:
        raise KeyboardInterrupt
