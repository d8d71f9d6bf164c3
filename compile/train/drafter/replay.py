"""What a drafter is worth: the serving loop replayed over texts that the target wrote greedily, block by block.

A block depends on the text up to its anchor alone, so blocks of all anchors are drafted at once, and the loop then goes
from anchor to anchor: exactly the tokens that serving's greedy chain would accept, in this precision.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from tandem.compile.train.drafter.model import Drafter
from tandem.compile.train.drafter.objective import Slots, draft, places
from tandem.compile.train.drafter.target import Target
from tandem.compile.train.drafter.writing import Written

ANCHORS = 64
"""Blocks drafted at a time."""


@dataclass(frozen=True, slots=True)
class Replay:
    """Of one domain: `rounds` of the loop committed `tokens`; `slots`: how often each slot came right in its turn.

    `listed` is the mean number of slots of a round whose token was among the candidates: what a tree could accept.
    """

    rounds: int
    tokens: int
    listed: float
    slots: tuple[float, ...]

    @property
    def tokens_a_round(self) -> float:
        return self.tokens / self.rounds


@torch.no_grad()
def replay(
    drafter: Drafter, target: Target, domains: Mapping[str, Written], stop_ids: Collection[int]
) -> dict[str, Replay]:
    """Per domain, over each text from behind its prompt to its first stop id; domains without a round are left out."""
    found = {domain: _replay(drafter, target, written, stop_ids) for domain, written in domains.items()}
    return {domain: result for domain, result in found.items() if result is not None}


def _replay(drafter: Drafter, target: Target, written: Written, stop_ids: Collection[int]) -> Replay | None:
    size, rounds, tokens, listed = drafter.spec.block_size, 0, 0, 0
    reached = torch.zeros(size - 1, dtype=torch.long)
    for text, start in zip(torch.from_numpy(written.ids), written.start.tolist(), strict=True):
        end = text_end(text.tolist(), start, stop_ids)
        if end - 1 <= start:
            continue
        chain, among = (right.cumprod(-1).sum(-1).tolist() for right in _right(drafter, target, text, start, end))
        at = start
        while at < end - 1:
            accepted = min(chain[at - start], end - 1 - at)
            reached[:accepted] += 1
            rounds, tokens = rounds + 1, tokens + min(accepted + 1, end - 1 - at)
            listed += min(among[at - start], end - 1 - at)
            at += accepted + 1
    return Replay(rounds, tokens, listed / rounds, tuple((reached / rounds).tolist())) if rounds else None


def text_end(text: Sequence[int], start: int, stop_ids: Collection[int]) -> int:
    """Where a text ends that was written from `start` on: behind its first stop id."""
    return next((place + 1 for place in range(start, len(text)) if text[place] in stop_ids), len(text))


def _right(drafter: Drafter, target: Target, text: Tensor, start: int, end: int) -> tuple[Tensor, Tensor]:
    """Of a block at each anchor from `start` to end - 2, by slot: is the walk, and is any candidate, right.

    Both [anchors, S - 1]; a slot behind the text is wrong.
    """
    slots = drafter.spec.block_size - 1
    wanted = torch.cat((text[:end], text.new_full((slots,), -1)))[places(torch.arange(start, end - 1), slots) + 1]
    found = lattices(drafter, target, text[:end], range(start, end - 1))
    walk = found.candidates.gather(-1, found.greedy[..., None])[..., 0]
    return (walk == wanted).long(), (found.candidates == wanted[..., None]).any(-1).long()


class Lattices(NamedTuple):
    """Of blocks side by side, on the CPU; scores [..., p, c] as serving has them."""

    candidates: Tensor  # [blocks, S - 1, k]
    scores: Tensor  # [blocks, S - 1, k, k]
    greedy: Tensor  # [blocks, S - 1], places in a slot's candidates


@torch.no_grad()
def lattices(drafter: Drafter, target: Target, text: Tensor, anchors: range) -> Lattices:
    """What is drafted at each of `anchors`, positions of `text` [T] that have a token before them."""
    # Behind the text stands anything: no block reads what is behind its anchor.
    ids = torch.cat((text, text.new_zeros(drafter.spec.block_size))).to(target.device)[None]
    streams, parts = target.sequence(ids, drafter.spec.taps)[0], []
    for part in torch.split(torch.tensor(anchors, device=target.device), ANCHORS):
        found = lattice(draft(drafter, target, ids, streams, part[None]), drafter)
        parts.append([tensor[0].cpu() for tensor in found])
    return Lattices(*(torch.cat(tensors) for tensors in zip(*parts, strict=True)))


def lattice(slots: Slots, drafter: Drafter) -> Lattices:
    """The lattices of blocks [B, N], each tensor with these dimensions first."""
    unary, candidates = slots.logits.float().topk(drafter.spec.selector_top_k, dim=-1)
    anchor = slots.before[:, :, :1, None].expand(*candidates.shape[:2], 1, candidates.shape[-1])
    before = torch.cat((anchor, candidates[:, :, :-1]), 2)
    scores = unary[..., None, :] + drafter.candidate_selector(slots.hidden, before, candidates).float()
    taken, greedy = torch.zeros_like(anchor[..., 0, :1]), []
    for slot in range(candidates.shape[2]):
        row = scores[:, :, slot].gather(2, taken[..., None].expand(*taken.shape, scores.shape[-1]))
        taken = row.argmax(-1)
        greedy.append(taken)
    return Lattices(candidates, scores, torch.cat(greedy, -1))
