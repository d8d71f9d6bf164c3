"""The model that is trained against Transformers' and against our own reference, on the same weights."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from tandem.compile.models.families import resolve
from tandem.compile.models.reference import ReferenceModel
from tandem.compile.models.weights import load, load_mtp
from tandem.compile.train.export import export
from tandem.compile.train.model import Model
from tandem.compile.train.objective import depths
from tandem.compile.train.shape import complete
from tests.compile.models.oracle import read_config, read_tensors

VOCAB_SIZE = 300


def random_model(config: dict[str, Any]) -> Model:
    """Weights large enough for logits that differ, in bfloat16's own numbers, so that nothing is lost on disk."""
    model = Model(resolve(config), seed=3)  # type: ignore[arg-type]
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn(parameter.shape, generator=generator))
            parameter.copy_(parameter.bfloat16())
    return model


@pytest.fixture(params=[True, False], ids=["tied", "untied"])
def exported(request: pytest.FixtureRequest, tiny: dict[str, Any], tmp_path: Path) -> tuple[Model, Path]:
    config = complete(tiny | {"tie_word_embeddings": request.param}, VOCAB_SIZE)
    model = random_model(config)
    export(tmp_path, model, config, "{}", "# card\n")
    return model, tmp_path


def ids(count: int) -> Tensor:
    return torch.randint(VOCAB_SIZE, (1, count), generator=torch.Generator().manual_seed(1))


@torch.no_grad()
def logits(model: Model, text: Tensor) -> Tensor:
    return model.hidden(text)[0] @ model.head_weight.T


@pytest.mark.parametrize("count", [1, 64, 150])
def test_logits_are_those_of_transformers(exported: tuple[Model, Path], count: int) -> None:
    import transformers

    transformers.utils.logging.set_verbosity_error()
    model, folder = exported
    theirs = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    assert type(theirs).__name__ == "Qwen3_5ForCausalLM"
    with torch.no_grad():
        wanted = theirs(ids(count)).logits[0]
    assert wanted.std() > 0.1
    torch.testing.assert_close(logits(model, ids(count)), wanted, rtol=0, atol=1e-4)


def test_logits_are_those_of_our_reference(exported: tuple[Model, Path]) -> None:
    model, folder = exported
    tensors = load(resolve(read_config(folder)), read_tensors(folder))
    wanted = ReferenceModel(resolve(read_config(folder)), dict(tensors), torch.float64).forward(ids(80)[0].tolist())
    torch.testing.assert_close(logits(model, ids(80)).double(), wanted, rtol=0, atol=1e-4)


def test_drafting_layer_is_read_back(exported: tuple[Model, Path]) -> None:
    """Every tensor of it has the name and shape that a reader of published checkpoints wants."""
    model, folder = exported
    found = dict(load_mtp(resolve(read_config(folder)), read_tensors(folder)))  # type: ignore[arg-type]
    halves = found["mtp.fc_embedding"], found["mtp.fc_hidden"]
    assert torch.equal(torch.cat(halves, 1).float(), model.mtp.fc.weight)
    assert torch.equal(found["mtp.final_norm"], 1 + model.mtp.norm.weight)
    stored = [name for name in load_file(folder / "model.safetensors") if name.startswith("mtp.")]
    assert len(stored) == 4 + 11


@torch.no_grad()
def test_no_token_sees_what_comes_after_it(tiny: dict[str, Any]) -> None:
    model, text = random_model(complete(tiny, VOCAB_SIZE)), ids(70)
    changed = text.clone()
    changed[0, 40] = (changed[0, 40] + 1) % VOCAB_SIZE
    for ahead, ((one, _), (other, _)) in enumerate(zip(depths(model, text, 2), depths(model, changed, 2), strict=True)):
        first = 40 - ahead  # depth d embeds the token d places on
        torch.testing.assert_close(one[0, :first], other[0, :first])
        assert not torch.allclose(one[0, first], other[0, first])


def test_what_each_depth_is_to_tell(tiny: dict[str, Any]) -> None:
    model, text = random_model(complete(tiny, VOCAB_SIZE)), ids(20)
    for ahead, (hidden, targets) in enumerate(depths(model, text, 2)):
        assert hidden.shape == (1, 17, 32)
        assert torch.equal(targets, text[:, 1 + ahead : 18 + ahead])
