"""The replay against serving's loop, round by round, and the losses against their definition."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from tandem.compile.models.dflash2_config import resolve_drafter
from tandem.compile.models.dflash2_reference import Drafted, ReferenceDrafter
from tandem.compile.models.dflash2_weights import load_drafter
from tandem.compile.train.drafter import objective
from tandem.compile.train.drafter.model import Drafter
from tandem.compile.train.drafter.replay import replay
from tandem.compile.train.drafter.samples import Samples
from tandem.compile.train.drafter.settings import Settings
from tandem.compile.train.drafter.target import Target
from tandem.compile.train.drafter.trainer import make_optimisers
from tandem.compile.train.drafter.writing import Written, write
from tandem.errors import UsageError
from tests.compile.models import dflash2_oracle as oracle
from tests.compile.models.oracle import Tensors
from tests.compile.train.drafter.toys import toy_target

SPEC = resolve_drafter(oracle.TINY)


def written(target: Target, count: int = 4, length: int = 60) -> Written:
    prompts = np.random.default_rng(8).integers(0, SPEC.vocab_size, (count, 6))
    return write(target, list(prompts), length)


def learned(target: Target, steps: int = 60) -> Drafter:
    """A drafter that gets some of the toy's tokens right."""
    drafter = Drafter(SPEC, seed=1).double()
    settings = Settings(batch=4, micro_batch=4, length=60, blocks=12, given=0.0, lr=1e-2, optimiser="adamw")
    samples = Samples(written(target, 16), np.zeros(100, np.int64), settings, SPEC.block_size)
    (optimiser,) = make_optimisers(drafter, settings)
    for step in range(steps):
        found = objective.losses(drafter, target, *samples.at(step), settings)
        optimiser.zero_grad()
        objective.total(found, settings).backward()
        optimiser.step()
    return drafter


def streams(target: Target, text: list[int]) -> Tensor:
    return target.sequence(torch.tensor([text]), SPEC.taps)[0][0]


def served(drafter: Drafter, target: Target, text: list[int], start: int) -> tuple[int, int, int, list[int]]:
    """Serving's loop over one text: rounds, tokens, listed slots, and how often each slot was accepted."""
    stored = Tensors({name: tensor.detach() for name, tensor in drafter.state_dict().items()})
    serving = ReferenceDrafter(SPEC, dict(load_drafter(SPEC, stored)), target.embedding, target.head)
    at, rounds, tokens, listed, slots = start, 0, 0, 0, [0] * (SPEC.block_size - 1)
    while at < len(text) - 1:
        serving.sync({0: streams(target, text[:at])[serving.lengths[0] :]})
        (block,) = serving.draft({0: text[at]})
        right = _agreeing(block.chain, text[at + 1 :])
        listed += _among(block, text[at + 1 :])
        for slot in range(right):
            slots[slot] += 1
        committed = min(right + 1, len(text) - 1 - at)
        rounds, tokens, at = rounds + 1, tokens + committed, at + committed
    return rounds, tokens, listed, slots


def _agreeing(chain: list[int], text: list[int]) -> int:
    count = 0
    while count < min(len(chain), len(text)) and chain[count] == text[count]:
        count += 1
    return count


def _among(block: Drafted, text: list[int]) -> int:
    count = 0
    while count < min(len(block.token), len(text)) and text[count] in block.token[count].tolist():
        count += 1
    return count


def test_the_replay_is_servings_loop() -> None:
    target = toy_target()
    drafter, texts = learned(target), written(target)
    stop = int(texts.ids[0, 40])  # ends some texts early
    wanted, slots = np.zeros(3, int), np.zeros(SPEC.block_size - 1, int)
    for text, start in zip(texts.ids.tolist(), texts.start.tolist(), strict=True):
        end = next((i + 1 for i in range(start, len(text)) if text[i] == stop), len(text))
        *counts, accepted = served(drafter, target, text[:end], start)
        wanted += counts
        slots += accepted
    found = replay(drafter, target, {"all": texts, "none": Written(texts.ids[:0], texts.start[:0])}, [stop])
    assert found.keys() == {"all"}
    result = found["all"]
    assert (result.rounds, result.tokens, round(result.listed * result.rounds)) == tuple(wanted)
    assert [round(share * result.rounds) for share in result.slots] == slots.tolist()
    assert result.tokens_a_round > 1.1 and result.listed >= result.tokens_a_round - 1


def test_losses_are_their_definition() -> None:
    """Slot by slot in plain Python, the selector's candidates with and without the label."""
    target, drafter = toy_target(), Drafter(SPEC, seed=2).double()
    drafter.candidate_selector.successor_codebook.data.normal_(0, 0.3, generator=torch.Generator().manual_seed(0))
    ids = torch.from_numpy(written(target, 2, 30).ids)
    anchors = torch.tensor([[2, 9, 20], [1, 8, 25]])
    settings = Settings(top=6, fade=3.0, divergence=0.5, selector=2.0)
    with torch.no_grad():
        found = objective.losses(drafter, target, ids, anchors, settings)
    drafter.requires_grad_(False)
    logits = target.logits(target.sequence(ids)[1])
    slots = objective.draft(drafter, target, ids, streams_of(target, ids), anchors)
    sums, rows, k = np.zeros(3), SPEC.block_size - 1, SPEC.selector_top_k
    weights = np.exp(-np.arange(rows) / 3.0)
    weights *= rows / weights.sum()
    for (text, block), anchor in np.ndenumerate(anchors.numpy()):
        for slot in range(rows):
            place = int(anchor) + slot
            label, q = int(logits[text, place].argmax()), slots.logits[text, block, slot].log_softmax(-1)
            top = logits[text, place].topk(6)
            p = top.values.softmax(-1)
            candidates = slots.logits[text, block, slot].topk(k).indices.tolist()
            if label not in candidates:
                candidates[-1] = label
            gate = drafter.candidate_selector.hidden_projection(slots.hidden[text, block, slot])
            a, b = (getattr(drafter.candidate_selector, f"{n}_codebook") for n in ("predecessor", "successor"))
            bonds = torch.stack([(a[ids[text, place]] * gate * b[c]).sum() for c in candidates])
            scores = (slots.logits[text, block, slot, candidates] + bonds).log_softmax(-1)
            parts = -q[label], (p * (p.log() - q[top.indices])).sum(), -scores[candidates.index(label)]
            sums += weights[slot] * np.array([float(part) for part in parts])
    np.testing.assert_allclose(found[:3].numpy(), sums / anchors.numel() / rows, rtol=1e-6)
    total = float(objective.total(found, settings))
    assert total == pytest.approx(float(found[0] + 0.5 * found[1] + 2.0 * found[2]))


def streams_of(target: Target, ids: Tensor) -> Tensor:
    return target.sequence(ids, SPEC.taps)[0]


def test_every_weight_learns_and_the_target_does_not() -> None:
    target, drafter = toy_target(), Drafter(SPEC, seed=2).double()
    drafter.candidate_selector.successor_codebook.data.normal_(0, 0.3)
    ids = torch.from_numpy(written(target, 2, 30).ids)
    settings = Settings()
    found = objective.losses(drafter, target, ids, torch.tensor([[5, 9], [7, 12]]), settings)
    objective.total(found, settings).backward()
    for name, parameter in drafter.named_parameters():
        assert parameter.grad is not None and parameter.grad.any(), name
    assert not target.head.requires_grad and target.head.grad is None


def test_a_block_learns_nothing_from_the_text_behind_its_anchor() -> None:
    """Streams behind an anchor may be NaN."""
    target, drafter = toy_target(), Drafter(SPEC, seed=2).double()
    ids, anchors = torch.from_numpy(written(target, 1, 30).ids), torch.tensor([[10]])
    clean, torn = streams_of(target, ids), streams_of(target, ids)
    torn[:, 10:] = 1e3
    one, other = (objective.draft(drafter, target, ids, s, anchors).hidden for s in (clean, torn))
    assert torch.equal(one, other)


def samples(**options: Any) -> Samples:
    settings = Settings(**({"batch": 6, "length": 40, "blocks": 4, "given": 0.5} | options))
    texts = Written(np.arange(5 * 40).reshape(5, 40), np.array([1, 20, 31, 33, 40]))
    return Samples(texts, np.arange(1000, 1200), settings, SPEC.block_size)


def test_samples_follow_from_seed_and_step() -> None:
    for step in range(20):
        ids, anchors = samples().at(step)
        again, places = samples().at(step)
        assert torch.equal(ids, again) and torch.equal(anchors, places)
        for text, blocks in zip(ids.tolist(), anchors.tolist(), strict=True):
            first = 1 if text[0] >= 1000 else [1, 20, 31][text[0] // 40]  # the others have no room for 4 blocks
            assert blocks == sorted(set(blocks)) and first <= blocks[0] and blocks[-1] <= 40 - SPEC.block_size
    assert not torch.equal(samples().at(0)[0], samples().at(1)[0])
    assert not torch.equal(samples().at(0)[0], samples(seed=1).at(0)[0])


@pytest.mark.parametrize("options", [{"blocks": 36}, {"length": 300}])
def test_blocks_that_do_not_fit_are_said(options: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match="blocks of 5 do not fit into texts of"):
        samples(**options)
