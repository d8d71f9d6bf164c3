"""What a trained model is worth: its loss on held-out text, how often its drafts are right, what it writes."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
import torch.nn.functional as F

from tandem.compile.train.corpus import Ids
from tandem.compile.train.model import Model
from tandem.compile.train.objective import depths


@dataclass(frozen=True, slots=True)
class Score:
    """Of one domain: nats a token and bits a byte, the share of tokens that the model and each draft depth guess."""

    tokens: int
    loss: float
    bits_per_byte: float
    accuracy: float
    draft_accuracy: tuple[float, ...]


@torch.no_grad()
def held_out(
    model: Model, domains: Mapping[str, Ids], sizes: Mapping[str, int], *, length: int, batch: int, draft_depth: int
) -> dict[str, Score]:
    """Scores by domain over windows of `length` tokens that do not overlap, in the model's own dtype.

    `sizes` are the bytes of each domain's text. A domain of less than a window is one shorter window.
    """
    return {
        domain: _score(model, ids, sizes[domain], length, batch, draft_depth)
        for domain, ids in domains.items()
        if len(ids) > draft_depth + 1
    }


def _score(model: Model, ids: Ids, size: int, length: int, batch: int, draft_depth: int) -> Score:
    device, ahead = next(model.parameters()).device, draft_depth + 1
    length = min(length, len(ids) - ahead)
    starts = torch.arange(0, len(ids) - length - ahead + 1, length)
    text = torch.from_numpy(ids.astype("int64"))
    loss, right = 0.0, torch.zeros(ahead, dtype=torch.long, device=device)
    for part in torch.split(starts, batch):
        windows = text[part[:, None] + torch.arange(length + ahead)].to(device)
        for depth, (hidden, targets) in enumerate(depths(model, windows, draft_depth)):
            logits = F.linear(hidden, model.head_weight)
            right[depth] += (logits.argmax(-1) == targets).sum()
            if depth == 0:
                loss += float(F.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="sum"))
    tokens = len(starts) * length
    model_right, *draft_right = (int(count) / tokens for count in right)
    mean = loss / tokens
    return Score(tokens, mean, mean * len(ids) / size / math.log(2), model_right, tuple(draft_right))


@torch.no_grad()
def write(model: Model, prompt: list[int], *, max_tokens: int, stop_ids: frozenset[int]) -> list[int]:
    """The most likely tokens behind `prompt`, a stop id being the last; each is told from the whole text anew."""
    device = next(model.parameters()).device
    text = list(prompt)
    while len(text) < len(prompt) + max_tokens and text[-1] not in stop_ids:
        hidden = model.hidden(torch.tensor([text], device=device))[0, -1]
        text.append(int(F.linear(hidden, model.head_weight).argmax()))
    return text[len(prompt) :]
