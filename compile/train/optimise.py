"""How weights move: Muon for matrices inside the model, AdamW for the rest, one schedule for both.

Muon (Jordan et al. 2024) makes a momentum's singular values equal by Newton-Schulz iterations; matrices of one shape go
together. Its step is scaled to the size AdamW's would have (Liu et al. 2025, `0.2 * sqrt(max(rows, columns))`).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn

# Jordan's quintic, whose slope at zero is steep: five rounds bring singular values to 1 within some 0.3.
_A, _B, _C, _ROUNDS = 3.4445, -4.7750, 2.0315, 5


def orthogonal(matrices: Tensor) -> Tensor:
    """[count, rows, columns] with all singular values near one, in bfloat16 on a GPU."""
    x = matrices.to(torch.bfloat16) if matrices.is_cuda else matrices
    tall = x.shape[-2] > x.shape[-1]
    x = x.mT if tall else x
    x = x / (x.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    for _ in range(_ROUNDS):
        square = x @ x.mT
        x = _A * x + (_B * square + _C * square @ square) @ x
    return x.mT if tall else x


class Muon(torch.optim.Optimizer):
    """Steps of equal singular values for 2-d parameters; `weight_decay` is decoupled, as in AdamW."""

    def __init__(self, params: Iterable[Tensor], lr: float, momentum: float = 0.95, weight_decay: float = 0.0) -> None:
        super().__init__(params, {"lr": lr, "momentum": momentum, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        for group in self.param_groups:
            by_shape: dict[torch.Size, list[Tensor]] = defaultdict(list)
            for parameter in group["params"]:
                if parameter.grad is not None:
                    by_shape[parameter.shape].append(parameter)
            for parameters in by_shape.values():
                self._step_together(parameters, group)

    def _step_together(self, parameters: list[Tensor], group: dict[str, Any]) -> None:
        gradients = [p.grad for p in parameters if p.grad is not None]
        momenta = [self._momentum(p) for p in parameters]
        torch._foreach_lerp_(momenta, gradients, 1 - group["momentum"])
        ahead = torch._foreach_lerp(gradients, momenta, group["momentum"])  # Nesterov's
        scale = 0.2 * max(parameters[0].shape) ** 0.5
        steps = orthogonal(torch.stack(list(ahead))).to(parameters[0].dtype)
        torch._foreach_mul_(parameters, 1 - group["lr"] * group["weight_decay"])
        torch._foreach_add_(parameters, list(steps.unbind()), alpha=-group["lr"] * scale)

    def _momentum(self, parameter: Tensor) -> Tensor:
        state = self.state[parameter]
        if "momentum" not in state:
            state["momentum"] = torch.zeros_like(parameter)
        momentum: Tensor = state["momentum"]
        return momentum


def optimisers(model: nn.Module, lr: float, weight_decay: float) -> list[torch.optim.Optimizer]:
    """Muon over matrices but tables of the vocabulary, AdamW over those (with decay) and vectors (without)."""
    matrices, tables, others = [], [], []
    for name, parameter in model.named_parameters():
        if name.endswith(("embed_tokens.weight", "lm_head.weight", "_codebook")):
            tables.append(parameter)
        elif parameter.ndim == 2 and min(parameter.shape) >= 16:
            matrices.append(parameter)
        else:
            others.append(parameter)
    groups = [{"params": tables, "weight_decay": weight_decay / 10}, {"params": others, "weight_decay": 0.0}]
    adam = torch.optim.AdamW(groups, lr=lr, betas=(0.9, 0.95), eps=1e-10)
    found: list[torch.optim.Optimizer] = [adam]
    if matrices:
        found.append(Muon(matrices, lr=lr, weight_decay=weight_decay))
    return found


def rate(step: int, total: int | None, *, warmup: int, decay_share: float) -> float:
    """The factor of the learning rate: up over `warmup` steps, level, down to zero over the last share of `total`.

    Without a total, which a run may not know yet, it stays level.
    """
    up = min(1.0, (step + 1) / warmup)
    if total is None:
        return up
    return min(up, max(0.0, (total - step) / max(1.0, decay_share * total)))
