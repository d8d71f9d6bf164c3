"""Blocks packed for training against the drafter that serves: in float64, block by block, on the same weights."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from tandem.compile.models.dflash2_config import resolve_drafter
from tandem.compile.models.dflash2_reference import ReferenceDrafter
from tandem.compile.models.dflash2_weights import load_drafter
from tandem.compile.train.drafter.model import Drafter
from tandem.compile.train.drafter.objective import Slots
from tandem.compile.train.drafter.replay import lattice
from tests.compile.models import dflash2_oracle as oracle
from tests.compile.models.oracle import Tensors

SPEC = resolve_drafter(oracle.TINY)
LENGTH = 40


def wide_drafter() -> Drafter:
    """Random in every weight."""
    drafter = Drafter(SPEC).double()
    drafter.load_state_dict({name: torch.from_numpy(t).double() for name, t in oracle.tensors(oracle.TINY).items()})
    return drafter


def normal(*shape: int, seed: int) -> Tensor:
    return torch.from_numpy(np.random.default_rng(seed).standard_normal(shape))


def test_packed_blocks_are_what_serving_drafts() -> None:
    """Two texts, blocks in them at places near and far, overlapping ones too."""
    drafter, size = wide_drafter(), SPEC.block_size
    embedding, head = (
        normal(SPEC.vocab_size, SPEC.hidden_size, seed=1),
        normal(SPEC.vocab_size, SPEC.hidden_size, seed=2),
    )
    taps = normal(2, LENGTH, SPEC.tap_width, seed=3)
    ids = torch.from_numpy(np.random.default_rng(4).integers(0, SPEC.vocab_size, (2, LENGTH)))
    anchors = torch.tensor([[1, 2, 11, 30], [3, 4, 12, 35]])
    rows = torch.full((*anchors.shape, size), SPEC.mask_token_id)
    rows[..., 0] = ids.gather(1, anchors)
    with torch.no_grad():
        hidden = drafter(taps, anchors, embedding[rows])[:, :, 1:]
        before = rows[..., :1].expand(-1, -1, size - 1)  # of which serving knows the anchor alone
        candidates, scores, greedy = lattice(Slots(hidden, hidden @ head.T, before), drafter)
    stored = Tensors({name: tensor.detach() for name, tensor in drafter.state_dict().items()})
    for text in range(2):
        for block, anchor in enumerate(anchors[text].tolist()):
            serving = ReferenceDrafter(SPEC, dict(load_drafter(SPEC, stored)), embedding, head)
            serving.sync({0: taps[text, :anchor]})
            (wanted,) = serving.draft({0: int(ids[text, anchor])})
            assert candidates[text, block].tolist() == wanted.token.tolist()
            assert greedy[text, block].tolist() == wanted.walk.tolist()
            found = scores[text, block].double()
            torch.testing.assert_close(found, wanted.score, rtol=0, atol=1e-5)


def test_it_begins_as_what_its_convolutions_and_bonds_do_not_change() -> None:
    drafter = Drafter(SPEC, seed=1)
    conv = drafter.layers[0].attention_conv
    x = torch.randn(3, SPEC.block_size, SPEC.hidden_size)
    from tandem.compile.train.drafter.model import convolve

    for factors in conv.factors(x):
        torch.testing.assert_close(convolve(x, factors), x)
    ids = torch.arange(4)
    assert not drafter.candidate_selector(torch.randn(SPEC.hidden_size), ids, ids).any()


def test_the_seed_decides_the_weights() -> None:
    one, same, other = (Drafter(SPEC, seed=seed).state_dict() for seed in (1, 1, 2))
    assert all(torch.equal(one[name], same[name]) for name in one)
    assert not torch.equal(one["fc.weight"], other["fc.weight"])
