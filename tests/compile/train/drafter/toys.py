"""A toy target of the tiny drafter's sizes, with random weights, for tests."""

from __future__ import annotations

import numpy as np
import torch

from tandem.compile.models.families import resolve
from tandem.compile.models.weights import weight_sources
from tandem.compile.train.drafter.target import Target
from tests.compile.models.dflash2_oracle import TINY

CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": TINY["hidden_size"],
    "num_attention_heads": 2,
    "intermediate_size": 32,
    "num_hidden_layers": TINY["num_target_layers"],
    "vocab_size": TINY["vocab_size"],
    "max_position_embeddings": 256,
}


def toy_target(dtype: torch.dtype = torch.float64, seed: int = 0) -> Target:
    spec, random = resolve(CONFIG), np.random.default_rng(seed)
    tensors = {
        name: torch.from_numpy(random.standard_normal(source.shape) * (2.0 if len(source.shape) == 2 else 0.3))
        for name, source in weight_sources(spec).items()
    }
    tensors = {n: t * t.shape[-1] ** -0.5 if t.ndim == 2 else 1 + t for n, t in tensors.items()}
    return Target(spec, tensors, dtype, torch.device("cpu"))
