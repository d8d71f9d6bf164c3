"""What decides a drafter's loss curve."""

from __future__ import annotations

from dataclasses import dataclass

OPTIMISERS = ("adamw", "muon")


@dataclass(frozen=True, slots=True)
class Settings:
    """Of `steps` and `minutes` the first that is given sets how long the training is.

    A step sees `batch` texts of `length` tokens, `micro_batch` at a time, and drafts `blocks` blocks in each. `given`
    is the share of texts that the target did not write. A slot's loss counts exp(-slot / `fade`): a verify pays for a
    block's accepted beginning. `divergence`, from the target's `top` likeliest tokens, and `selector` are the shares of
    those losses beside the cross-entropy.
    """

    batch: int = 16
    micro_batch: int = 16
    length: int = 512
    blocks: int = 32
    given: float = 0.25
    top: int = 64
    fade: float = 7.0
    divergence: float = 0.5
    selector: float = 1.0
    optimiser: str = "muon"
    lr: float = 2e-3
    weight_decay: float = 0.0
    warmup: int = 50
    decay_share: float = 0.5
    clip: float = 1.0
    seed: int = 0
    steps: int | None = None
    minutes: float | None = None

    @property
    def step_tokens(self) -> int:
        return self.batch * self.length
