"""The lattice of a draft block: how well each candidate of a slot follows each of the slot before, and the greedy walk.

Slots are the output rows of a pass, a block's together, the one behind the anchor first; `prefix` is the anchor's
position, and the anchor's row stands right before that of the block's first slot. Letters: k candidates, J rank.
"""

from __future__ import annotations

import torch
from torch import Tensor

from tandem.kernels.precision import compute_dtype


def _first(output_row: Tensor, position: Tensor, prefix: Tensor) -> list[bool]:
    """Of each output whether it is a block's first slot."""
    rows = output_row.long()
    return ((position[rows] - prefix[rows]) == 1).tolist()


@torch.library.custom_op("tandem::lattice_scores", mutates_args=())
def lattice_scores(
    candidate: Tensor,
    unary: Tensor,
    gate: Tensor,
    token: Tensor,
    output_row: Tensor,
    position: Tensor,
    prefix: Tensor,
    predecessor: Tensor,
    successor: Tensor,
) -> Tensor:
    """candidate [O, k] int32, unary [O, k], gate [O, J], predecessor and successor [V, J] -> score [O, k, k].

    score[o, p, c] = unary[o, c] + <predecessor[id of p] * gate[o], successor[candidate[o, c]]>, where p is a candidate
    of the slot before, or the anchor, whatever p, in a block's first slot. token, position and prefix [R] int32 are
    those of all rows, output_row [O] int32 says which of them are slots.
    """
    dtype = compute_dtype(unary)
    scores = []
    for output, first in enumerate(_first(output_row, position, prefix)):
        anchor = token[output_row[output].long() - 1]
        before = anchor.expand(candidate.shape[1]) if first else candidate[output - 1]
        bonds = (predecessor[before.long()].to(dtype) * gate[output].to(dtype)) @ successor[
            candidate[output].long()
        ].to(dtype).T
        scores.append(unary[output].to(dtype) + bonds)
    return torch.stack(scores) if scores else unary.new_empty((0, unary.shape[1], unary.shape[1]), dtype=dtype)


@lattice_scores.register_fake
def _(
    candidate: Tensor,
    unary: Tensor,
    gate: Tensor,
    token: Tensor,
    output_row: Tensor,
    position: Tensor,
    prefix: Tensor,
    predecessor: Tensor,
    successor: Tensor,
) -> Tensor:
    return unary.new_empty((*unary.shape, unary.shape[1]), dtype=compute_dtype(unary))


@torch.library.custom_op("tandem::lattice_walk", mutates_args=())
def lattice_walk(score: Tensor, output_row: Tensor, position: Tensor, prefix: Tensor) -> Tensor:
    """score [O, k, k] -> greedy [O] int32: of each slot the best candidate behind the one taken in the slot before.

    The first of equal scores wins.
    """
    greedy, before = [], 0
    for output, first in enumerate(_first(output_row, position, prefix)):
        before = int(score[output, 0 if first else before].argmax())
        greedy.append(before)
    return torch.tensor(greedy, dtype=torch.int32, device=score.device)


@lattice_walk.register_fake
def _(score: Tensor, output_row: Tensor, position: Tensor, prefix: Tensor) -> Tensor:
    return score.new_empty((score.shape[0],), dtype=torch.int32)
