"""What a drafter learns: in each row of a block the target's likeliest token there, and which token follows which.

Letters: B texts of T tokens, N blocks a text of S rows, so S - 1 slots; V vocabulary, H hidden_size, k candidates.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from tandem.compile.train.drafter.model import Drafter
from tandem.compile.train.drafter.settings import Settings
from tandem.compile.train.drafter.target import Target

NAMES = ("entropy", "divergence", "selector", "accepted")


@dataclass(frozen=True, slots=True)
class Slots:
    """What stands before the head for every slot, its logits, and the text's token before it."""

    hidden: Tensor  # [B, N, S - 1, H]
    logits: Tensor  # [B, N, S - 1, V]
    before: Tensor  # [B, N, S - 1]


def places(anchors: Tensor, slots: int) -> Tensor:
    """Where in its text the token before each slot stands: [B, N, slots] of anchors [B, N]."""
    return anchors[..., None] + torch.arange(slots, device=anchors.device)


def draft(drafter: Drafter, target: Target, ids: Tensor, streams: Tensor, anchors: Tensor) -> Slots:
    """Blocks at `anchors` [B, N] of texts `ids` [B, T], whose tapped streams are `streams` [B, T, W].

    A block reads the text up to its anchor, and the streams before it.
    """
    size = drafter.spec.block_size
    before = ids.gather(1, places(anchors, size - 1).flatten(1)).view(*anchors.shape, size - 1)
    masks = torch.full_like(before, drafter.spec.mask_token_id)
    rows = target.embedding[torch.cat((before[..., :1], masks), -1)].to(target.wide)
    hidden = drafter(streams.to(target.wide), anchors, rows)[:, :, 1:]
    # The head is the target's and learns nothing.
    return Slots(hidden, F.linear(hidden.to(target.head.dtype), target.head), before)


def losses(drafter: Drafter, target: Target, ids: Tensor, anchors: Tensor, settings: Settings) -> Tensor:
    """`NAMES` [4] of blocks at `anchors` [B, N] of texts `ids` [B, T].

    Cross-entropy to the target's token, divergence from its likeliest, the selector's cross-entropy. A slot is told the
    text's tokens before it, so its label is what the target holds likeliest behind those. `accepted` is how many slots
    of a block come right in a row when each is told them; nothing learns from it.
    """
    streams, thought = target.sequence(ids, drafter.spec.taps)
    slots = draft(drafter, target, ids, streams, anchors)
    with torch.no_grad():
        place = places(anchors, slots.before.shape[-1]).flatten(1)[..., None].expand(-1, -1, thought.shape[-1])
        wanted = target.logits(thought.gather(1, place).view(slots.hidden.shape))
        label = wanted.argmax(-1)
        top, likeliest = wanted.topk(min(settings.top, wanted.shape[-1]), dim=-1)
        probability = top.float().softmax(-1)
        count = label.shape[-1]
        weight = torch.exp(-torch.arange(count, device=label.device) / settings.fade)
        weight = weight / weight.sum() * count
    likely = slots.logits.float().log_softmax(-1)
    entropy = -likely.gather(-1, label[..., None])[..., 0]
    apart = (probability * (probability.clamp_min(1e-20).log() - likely.gather(-1, likeliest))).sum(-1)
    scores, chosen = _scores(slots, drafter, label)
    selected = F.cross_entropy(scores.flatten(0, -2), chosen.flatten(), reduction="none").view(label.shape)
    right = (scores.argmax(-1) == chosen).cumprod(-1).sum(-1).float().mean()
    return torch.stack([(loss * weight).mean() for loss in (entropy, apart, selected)] + [right])


def total(found: Tensor, settings: Settings) -> Tensor:
    """What is minimised, of the losses in the order of `NAMES`."""
    return found[0] + settings.divergence * found[1] + settings.selector * found[2]


def _scores(slots: Slots, drafter: Drafter, label: Tensor) -> tuple[Tensor, Tensor]:
    """Scores [..., k] of each slot's candidates, the label among them, and the label's place.

    The bonds learn beside the logits, which do not learn from them.
    """
    logits = slots.logits.detach().float()
    candidates = logits.topk(drafter.spec.selector_top_k, dim=-1).indices
    here = candidates == label[..., None]
    last = torch.arange(candidates.shape[-1], device=label.device) == candidates.shape[-1] - 1
    missing = ~here.any(-1, keepdim=True)
    candidates = torch.where(missing & last, label[..., None], candidates)
    bonds = drafter.candidate_selector(slots.hidden, slots.before[..., None], candidates)[..., 0, :]
    return logits.gather(-1, candidates) + bonds.float(), (candidates == label[..., None]).float().argmax(-1)
