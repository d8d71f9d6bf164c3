"""The real SmolLM2 on the C++ kernels: error against float64 beside that of Transformers, and its greedy texts."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tandem.compile.checkpoints.base import Checkpoint
from tandem.compile.checkpoints.open import open_checkpoint
from tandem.compile.models.families import resolve
from tandem.compile.models.reference import ReferenceModel
from tandem.compile.models.weights import load
from tandem.keys import Kind
from tests.compile.models import oracle
from tests.staged import Lane, Staged, stage

pytestmark = pytest.mark.smollm2
PROMPTS = (
    "<|im_start|>user\nWhat is the capital of France?<|im_end|>\n<|im_start|>assistant\n",
    "def fibonacci(n):\n",
    "Once upon a time, in a village by the sea,",
)


@dataclass(frozen=True, slots=True)
class Real:
    """The checkpoint in memory, in fp32."""

    checkpoint: Checkpoint
    tensors: oracle.Tensors
    folder: Path

    def rounded(self, dtype: torch.dtype) -> oracle.Tensors:
        return oracle.Tensors({name: tensor.to(dtype) for name, tensor in self.tensors.tensors.items()})

    def stage(self, profile: str, tensors: oracle.Tensors) -> Staged:
        folder = Path(tempfile.mkdtemp(dir=self.folder))
        return stage(self.checkpoint.config, tensors, profile, folder, max_rows=128, kinds=[Kind.EXTEND])

    def ids(self, prompt: str) -> list[int]:
        from tokenizers import Tokenizer

        return Tokenizer.from_str(self.checkpoint.tokenizer_json).encode(prompt, add_special_tokens=False).ids

    def transformers(self, tensors: oracle.Tensors, dtype: torch.dtype) -> Any:
        import transformers

        fields = {name: value for name, value in self.checkpoint.config.items() if name != "architectures"}
        with torch.device("meta"):
            model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**fields))
        rotary = type(model.model.rotary_emb)(model.config)
        state = {name: tensor.to(dtype) for name, tensor in tensors.tensors.items()}
        model.load_state_dict(state, strict=False, assign=True)
        model.lm_head.weight, model.model.rotary_emb = model.model.embed_tokens.weight, rotary
        return model.eval()


@pytest.fixture(scope="module")
def real(smollm2_gguf: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Real]:
    torch.set_num_threads(2)
    checkpoint = open_checkpoint(str(smollm2_gguf))
    tensors = oracle.Tensors({name: checkpoint.read(name) for name in checkpoint.names()})
    yield Real(checkpoint, tensors, tmp_path_factory.mktemp("smollm2"))
    torch.set_num_threads(1)


@pytest.mark.parametrize(("profile", "dtype"), [("fp32", torch.float32), ("bf16", torch.bfloat16)])
def test_the_error_is_at_most_twice_that_of_transformers(real: Real, profile: str, dtype: torch.dtype) -> None:
    """On weights rounded to the profile's type, so that both sides and float64 run the same model."""
    tensors, ids = real.rounded(dtype), real.ids(" ".join(PROMPTS))
    spec = resolve(real.checkpoint.config)
    model = ReferenceModel(spec, dict(load(spec, tensors)), torch.float64, context_length=64)
    exact = model.forward(ids).numpy()
    theirs = oracle.logits(real.transformers(tensors, dtype), ids).float().numpy()
    executor = real.stage(profile, tensors).executor(threads=1, num_pages=5)
    ours = Lane(executor).extend(ids)
    executor.close()
    for size in (np.mean, np.max):
        assert size(np.abs(ours - exact)) <= 2 * size(np.abs(theirs - exact)), size.__name__


def test_greedy_texts_are_those_of_transformers(real: Real) -> None:
    """Each of our 60 tokens is the one that Transformers finds most likely behind the same text."""
    model = real.transformers(real.tensors, torch.float32)
    executor = real.stage("fp32", real.tensors).executor(threads=1, num_pages=5)
    for prompt in PROMPTS:
        ids = real.ids(prompt)
        ours = Lane(executor).greedy(ids, 60)
        theirs = oracle.logits(model, ids + ours).argmax(-1).tolist()
        assert ours == theirs[len(ids) - 1 : -1], prompt
    executor.close()
