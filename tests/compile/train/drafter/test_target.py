"""The target of a training against Transformers in float64: whole sequences, token by token, and its streams."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tandem.compile.models.families import resolve
from tandem.compile.models.weights import load
from tandem.compile.train.drafter.target import Target
from tests.compile.models.oracle import Tensors, read_config, read_tensors, transformers_model, widened
from tests.tiny import make_checkpoint

CPU = torch.device("cpu")
FAMILIES = ("llama", "llama-yarn", "qwen2", "qwen3", "qwen3_5", "qwen3_5-odd")


def wide_target(folder: Path) -> Target:
    spec = resolve(read_config(folder))
    tensors = {name: tensor.double() for name, tensor in read_tensors(folder).tensors.items()}
    return Target(spec, dict(load(spec, Tensors(tensors))), torch.float64, CPU)


@pytest.mark.parametrize("family", FAMILIES)
def test_streams_and_logits_are_those_of_transformers(tmp_path: Path, family: str) -> None:
    """hidden_states[j] of Transformers is what enters layer j; its last entry is behind the final norm."""
    make_checkpoint(tmp_path, family)
    target, model = wide_target(tmp_path), transformers_model(tmp_path)
    ids = torch.randint(0, target.spec.vocab_size, (2, 70), generator=torch.Generator().manual_seed(0))
    with torch.no_grad(), widened(model):
        wanted = model(ids, output_hidden_states=True)
    layers = target.spec.num_hidden_layers
    streams, hidden = target.sequence(ids, range(layers + 1))
    tolerance = {"rtol": 0.0, "atol": 1e-4}  # of angles, which both round to float32 in their own way
    for tap, stream in enumerate(streams.chunk(layers + 1, -1)[:-1]):
        torch.testing.assert_close(stream, wanted.hidden_states[tap], **tolerance)
    torch.testing.assert_close(hidden, wanted.hidden_states[-1], **tolerance)
    torch.testing.assert_close(target.logits(hidden), wanted.logits, **tolerance)
    last = streams.chunk(layers + 1, -1)[-1]
    torch.testing.assert_close(target.norm(last, target.final_norm), hidden, **tolerance)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_token_at_a_time_is_the_sequence(tmp_path: Path, family: str) -> None:
    make_checkpoint(tmp_path, family)
    target = wide_target(tmp_path)
    ids = torch.randint(0, target.spec.vocab_size, (3, 20), generator=torch.Generator().manual_seed(1))
    _, wanted = target.sequence(ids)
    for _ in range(2):  # a second text finds nothing of the first
        target.begin(3, 20)
        found = torch.stack([target.step(token) for token in ids.T], 1)
        torch.testing.assert_close(found, wanted, rtol=0, atol=1e-9)
    target.end()
