"""The real SmolLM2: float64 logits against Transformers, float32 error against it, and its greedy answer."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest
import torch

from tandem.compile.checkpoints.base import Checkpoint
from tandem.compile.models.families import resolve
from tandem.compile.models.reference import ReferenceModel
from tandem.compile.models.weights import load, weight_sources
from tests.compile.models import oracle

pytestmark = pytest.mark.smollm2
QUESTION = (
    "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n"
    "<|im_start|>user\nWhat is the capital of France?<|im_end|>\n<|im_start|>assistant\n"
)


@pytest.fixture(scope="module")
def checkpoint(smollm2_gguf: Path) -> Checkpoint:
    from tandem.compile.checkpoints.open import open_checkpoint

    return open_checkpoint(str(smollm2_gguf))


@pytest.fixture(scope="module")
def prompt(checkpoint: Checkpoint) -> list[int]:
    from tokenizers import Tokenizer

    return Tokenizer.from_str(checkpoint.tokenizer_json).encode(QUESTION, add_special_tokens=False).ids


@pytest.fixture(scope="module")
def tensors(checkpoint: Checkpoint) -> oracle.Tensors:
    return oracle.Tensors({name: checkpoint.read(name) for name in checkpoint.names()})


def _ours(checkpoint: Checkpoint, tensors: oracle.Tensors, dtype: torch.dtype) -> ReferenceModel:
    spec = resolve(checkpoint.config)
    return ReferenceModel(spec, dict(load(spec, tensors)), dtype, context_length=128)


def _theirs(checkpoint: Checkpoint, tensors: oracle.Tensors, dtype: torch.dtype) -> Any:
    import transformers

    logging.getLogger("transformers").setLevel(logging.ERROR)
    fields = {name: value for name, value in checkpoint.config.items() if name != "architectures"}
    with torch.device("meta"):
        model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**fields))
    rotary = type(model.model.rotary_emb)(model.config)
    state = {name: tensor.to(dtype) for name, tensor in tensors.tensors.items()}
    missing, unexpected = model.load_state_dict(state, strict=False, assign=True)
    assert missing == ["lm_head.weight"] and unexpected == []  # tied
    model.lm_head.weight, model.model.rotary_emb = model.model.embed_tokens.weight, rotary
    if dtype == torch.float64:
        oracle.widen_norms(model)
    return model.eval()


def test_logits_are_those_of_transformers(checkpoint: Checkpoint, tensors: oracle.Tensors, prompt: list[int]) -> None:
    ours, theirs = _ours(checkpoint, tensors, torch.float64), _theirs(checkpoint, tensors, torch.float64)
    ours.cos, ours.sin = oracle.tables(theirs, ours.cos.shape[0])
    exact = oracle.logits(theirs, prompt)
    assert (ours.forward(prompt) - exact).abs().max() <= 1e-9 * exact.abs().max()
    narrow = _ours(checkpoint, tensors, torch.float32)
    narrow.cos, narrow.sin = ours.cos, ours.sin
    error = (narrow.forward(prompt) - exact).abs().mean()
    assert error <= 2 * (oracle.logits(_theirs(checkpoint, tensors, torch.float32), prompt) - exact).abs().mean()


def test_greedy_answer(checkpoint: Checkpoint, tensors: oracle.Tensors, prompt: list[int]) -> None:
    from tokenizers import Tokenizer

    assert "head" not in weight_sources(resolve(checkpoint.config))
    ids = _ours(checkpoint, tensors, torch.float32).greedy(prompt, 24, frozenset(checkpoint.stop_ids))
    text = Tokenizer.from_str(checkpoint.tokenizer_json).decode(ids)
    assert text.strip() == "The capital of France is Paris."
