"""Transformers as the independent oracle, and tiny checkpoints read by name for it and for us."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

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

    def dtype(self, name: str) -> str:
        return str(self.tensors[name].dtype)

    def read(self, name: str) -> Tensor:
        return self.tensors[name]


def read_config(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "config.json").read_text())


def read_tensors(folder: Path) -> Tensors:
    return Tensors(load_file(folder / "model.safetensors"))


def reference(folder: Path, dtype: torch.dtype = torch.float64, **options: Any) -> ReferenceModel:
    """Ours; in float64 its weights are widened before anything is made of them, 1 + w for one."""
    spec, tensors = resolve(read_config(folder)), read_tensors(folder).tensors
    if dtype == torch.float64:
        tensors = {name: tensor.double() for name, tensor in tensors.items()}
    return ReferenceModel(spec, dict(load(spec, Tensors(tensors))), dtype, **options)


def transformers_model(folder: Path, dtype: torch.dtype = torch.float64) -> Any:
    """Transformers' own model; `logits` and `states` run it in all of its `dtype`."""
    import transformers

    logging.getLogger("transformers").setLevel(logging.ERROR)
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=dtype, attn_implementation="sdpa").eval()
    if dtype == torch.float64:
        widen_norms(model)
    return model


def widen_norms(model: torch.nn.Module) -> None:
    """Norms of a float64 model, which always compute in float32, replaced; those of qwen3_5 see to `widened`."""
    for parent in list(model.modules()):
        for name, norm in list(parent.named_children()):
            if type(norm).__name__.endswith("RMSNorm") and not type(norm).__name__.startswith("Qwen3_5"):
                wide = torch.nn.RMSNorm(norm.weight.shape[0], eps=norm.variance_epsilon, dtype=torch.float64)
                wide.weight = norm.weight
                setattr(parent, name, wide)


class _Wide:
    """torch, in which float32 is float64."""

    float = float32 = torch.float64

    def __getattr__(self, name: str) -> Any:
        return getattr(torch, name)


@contextmanager
def widened(model: Any) -> Iterator[None]:
    """While a float64 model of qwen3_5 runs: what its code widens to float32 is widened to float64."""
    from transformers.models.qwen3_5 import modeling_qwen3_5

    if model.dtype != torch.float64 or not type(model).__module__.endswith("modeling_qwen3_5"):
        yield
        return
    with (
        mock.patch.object(modeling_qwen3_5, "torch", _Wide()),
        mock.patch.object(torch.Tensor, "float", torch.Tensor.double),
    ):
        yield


@torch.no_grad()
def logits(model: Any, ids: list[int]) -> Tensor:
    """[len(ids), V]"""
    with widened(model):
        return model(torch.tensor([ids])).logits[0]


@torch.no_grad()
def states(model: Any, ids: list[int]) -> dict[int, tuple[Tensor, Tensor]]:
    """By recurrent layer, behind `ids`: state [Hv, dk, dv] and the last raw inputs of the convolution [channels, W]."""
    with widened(model):
        cache = model(torch.tensor([ids]), use_cache=True).cache
    return {
        i: (cache.get_recurrent_state(i, state_idx=0)[0], cache.get_conv_state(i, state_idx=0)[0])
        for i, layer_type in enumerate(model.config.layer_types)
        if layer_type == "linear_attention"
    }


@torch.no_grad()
def tables(model: Any, num_positions: int) -> tuple[Tensor, Tensor]:
    """Transformers' cos and sin as `logits` uses them, [num_positions, rotary_dim / 2]; float32 unless `widened`."""
    with widened(model):
        cos, sin = model.model.rotary_emb(torch.zeros(1, dtype=model.dtype), torch.arange(num_positions)[None])
    half = cos.shape[-1] // 2
    return cos[0, :, :half], sin[0, :, :half]
