"""What training minimises: the cross-entropy of the next token, and a part of the drafter's at each of its depths."""

from __future__ import annotations

from collections.abc import Iterator

import torch.nn.functional as F
from torch import Tensor

from tandem.compile.train.model import Model


def depths(model: Model, ids: Tensor, draft_depth: int) -> Iterator[tuple[Tensor, Tensor]]:
    """(what stands before the head [B, T, H], the ids it is to tell [B, T]) of the model, then of each draft depth.

    ids [B, T + 1 + draft_depth]. A deeper draft stands on the drafter's own output, as when it drafts a chain.
    """
    length = ids.shape[1] - 1 - draft_depth
    hidden = model.hidden(ids[:, :length])
    yield hidden, ids[:, 1 : length + 1]
    for depth in range(1, draft_depth + 1):
        hidden = model.drafted(ids[:, depth : length + depth], hidden)
        yield hidden, ids[:, depth + 1 : length + depth + 1]


def cross_entropy(hidden: Tensor, head: Tensor, targets: Tensor) -> Tensor:
    """The mean, in nats, in fp32; hidden [B, T, H], head [V, H], targets [B, T]."""
    logits = F.linear(hidden, head).float()
    return F.cross_entropy(logits.flatten(0, 1), targets.flatten())
