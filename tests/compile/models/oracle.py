"""Transformers as the independent oracle, and tiny checkpoints read by name for it and for us."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor

from tandem.compile.models.families import resolve
from tandem.compile.models.reference import ReferenceModel
from tandem.compile.models.weights import load


class Tensors:
    """A checkpoint in memory: what `weights.load` reads from."""

    def __init__(self, tensors: dict[str, Tensor], origin: str = "tiny") -> None:
        self.tensors, self.origin = tensors, origin

    def names(self) -> Iterable[str]:
        return self.tensors

    def shape(self, name: str) -> tuple[int, ...]:
        return tuple(self.tensors[name].shape)

    def read(self, name: str) -> Tensor:
        return self.tensors[name]


def read_config(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "config.json").read_text())


def read_tensors(folder: Path) -> Tensors:
    return Tensors(load_file(folder / "model.safetensors"))


def reference(folder: Path, dtype: torch.dtype = torch.float64, **options: Any) -> ReferenceModel:
    spec = resolve(read_config(folder))
    return ReferenceModel(spec, dict(load(spec, read_tensors(folder))), dtype, **options)


def transformers_model(folder: Path, dtype: torch.dtype = torch.float64) -> Any:
    """Transformers' own model; in float64 with its norms replaced, which always compute in float32."""
    import transformers

    logging.getLogger("transformers").setLevel(logging.ERROR)
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=dtype, attn_implementation="sdpa").eval()
    if dtype == torch.float64:
        widen_norms(model)
    return model


def widen_norms(model: torch.nn.Module) -> None:
    for parent in list(model.modules()):
        for name, norm in list(parent.named_children()):
            if type(norm).__name__.endswith("RMSNorm"):
                wide = torch.nn.RMSNorm(norm.weight.shape[0], eps=norm.variance_epsilon, dtype=torch.float64)
                wide.weight = norm.weight
                setattr(parent, name, wide)


@torch.no_grad()
def logits(model: Any, ids: list[int]) -> Tensor:
    """[len(ids), V]"""
    return model(torch.tensor([ids])).logits[0]


@torch.no_grad()
def tables(model: Any, num_positions: int) -> tuple[Tensor, Tensor]:
    """Transformers' cos and sin, float32 [num_positions, head_dim / 2]; its angles are float32 products."""
    cos, sin = model.model.rotary_emb(torch.zeros(1), torch.arange(num_positions)[None])
    half = cos.shape[-1] // 2
    return cos[0, :, :half], sin[0, :, :half]
