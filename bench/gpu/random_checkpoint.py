"""Checkpoints of a shape whose tensors are drawn when they are asked for: 49 GB that lie nowhere, and drafters.

Each tensor depends on its name, the seed and the kind of device alone. Gates of recurrent layers are drawn as such
models begin their training: states forget within some tokens to a thousand, and stay finite.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import replace
from math import prod
from typing import Any

import torch

from bench.gpu.shapes import BF16, HybridShape, Shape
from bench.gpu.words import CHAT_TEMPLATE, tokenizer_json
from tandem.compile.checkpoints.base import Checkpoint, Progress, Stored, TokenizerFacts, missing_tensor
from tandem.compile.checkpoints.drafter import DrafterCheckpoint
from tandem.compile.models.dflash2_config import resolve_drafter
from tandem.compile.models.dflash2_weights import drafter_sources
from tandem.compile.models.families import resolve
from tandem.compile.models.sources import Source
from tandem.compile.models.weights import mtp_sources, weight_sources


class RandomCheckpoint(Checkpoint):
    """A model of `shape`: bf16 matrices of N(0, 1 / fan-in), norms around 1, drawn on `device`, given on the host.

    A hybrid stores most norms as what is added to one. With `mtp` it brings a layer that drafts.
    """

    def __init__(self, shape: Shape, *, seed: int = 0, device: str = "cuda", mtp: bool = False) -> None:
        facts = TokenizerFacts(tokenizer_json(shape.vocab_size), CHAT_TEMPLATE, "<|im_start|>", "<|im_end|>", ())
        super().__init__(f"random weights of shape {shape.name}", shape.config(), facts)
        self._seed, self._device, self._hybrid = seed, torch.device(device), isinstance(shape, HybridShape)
        if self._device.type == "cuda":
            torch.cuda.init()  # before Tandem asks the driver: it wants all kernels loaded at once, torch has thousands
        spec = resolve(self.config)
        self._shapes = _shapes(weight_sources(spec)) | (_shapes(mtp_sources(spec)) if mtp else {})

    def names(self) -> list[str]:
        return sorted(self._shapes)

    def stored(self, name: str) -> Stored:
        return _stored(name, self._shapes, self.origin)

    def read(self, name: str) -> torch.Tensor:
        added = self._hybrid and not name.endswith("linear_attn.norm.weight")
        return _read(self.stored(name).shape, f"{self._seed}:{name}", self._device, mean=0.0 if added else 1.0)

    def content(self, name: str) -> memoryview:
        return memoryview(self.read(name).view(torch.uint8).numpy().reshape(-1).data)

    def digest(self, progress: Progress | None = None) -> str:
        """Of the recipe: its tensors follow from it."""
        names = sorted(self._shapes)
        return _digest([self.config, self.tokenizer_json, self._seed, self._device.type, torch.__version__, names])


class RandomDrafter(DrafterCheckpoint):
    """A block drafter for a model of `shape`, as large as the published one for the 27B, drawn in the same way."""

    def __init__(self, shape: Shape, *, seed: int = 0, device: str = "cuda") -> None:
        self.origin, self.config = f"a random block drafter for {shape.name}", drafter_config(shape)
        self._seed, self._device = seed, torch.device(device)
        self._shapes = _shapes(drafter_sources(resolve_drafter(self.config)))

    def names(self) -> list[str]:
        return sorted(self._shapes)

    def stored(self, name: str) -> Stored:
        return _stored(name, self._shapes, self.origin)

    def read(self, name: str) -> torch.Tensor:
        return _read(self.stored(name).shape, f"{self._seed}:draft.{name}", self._device)

    def content(self, name: str) -> memoryview:
        return memoryview(self.read(name).view(torch.uint8).numpy().reshape(-1).data)

    def digest(self) -> str:
        """Of the recipe, as the model's."""
        return _digest([self.config, self._seed, self._device.type, torch.__version__])


def drafter_config(shape: Shape) -> dict[str, Any]:
    """The config.json of a DFlash2 drafter: five layers, blocks of 16, taps of five streams spread over the model."""
    layers = shape.num_hidden_layers
    section = {"block_size": 16, "mask_token_id": shape.vocab_size - 1, "conv_kernel_size": 2, "conv_group_size": 16}
    section |= {"selector_rank": 256, "selector_top_k": 16}
    return {
        "architectures": ["DFlash2DraftModel"],
        "hidden_size": shape.hidden_size,
        "intermediate_size": shape.intermediate_size,
        "num_hidden_layers": 5,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "is_causal": False,
        "sliding_window": 2048,
        "max_position_embeddings": shape.max_position_embeddings,
        "rms_norm_eps": shape.rms_norm_eps,
        "rope_parameters": {"rope_type": "default", "rope_theta": shape.rope_theta},
        "vocab_size": shape.vocab_size,
        "num_target_layers": layers,
        "dflash_config": section | {"target_layer_ids": sorted({layers * i // 64 for i in (4, 18, 32, 46, 60)})},
    }


def stored_bytes(checkpoint: Checkpoint | DrafterCheckpoint) -> int:
    """Of all tensors."""
    return sum(checkpoint.stored(name).num_bytes for name in checkpoint.names())


def _shapes(sources: Mapping[str, Source]) -> dict[str, tuple[int, ...]]:
    """Of the tensors that these parameters come from, by name."""
    return {name: size for s in sources.values() for name, size in zip(s.names, s.shapes, strict=True)}


def _stored(name: str, shapes: Mapping[str, tuple[int, ...]], origin: str) -> Stored:
    if name not in shapes:
        raise missing_tensor(origin, name)
    return Stored("BF16", shapes[name], BF16 * prod(shapes[name]))


def _read(size: tuple[int, ...], key: str, device: torch.device, mean: float = 1.0) -> torch.Tensor:
    """On the host, in memory that a GPU reads at full speed where there is one."""
    drawn = draw(size, key, device, mean)
    if drawn.device.type == "cpu":
        return drawn
    return torch.empty(drawn.shape, dtype=drawn.dtype, pin_memory=True).copy_(drawn)


def _digest(recipe: list[Any]) -> str:
    return hashlib.sha256(json.dumps(recipe, sort_keys=True).encode()).hexdigest()


def draw(size: tuple[int, ...], name: str, device: torch.device, mean: float = 1.0) -> torch.Tensor:
    """bf16 of `size` on `device`: a norm's weight around `mean`, a matrix [outputs, inputs] with a variance of
    1 / inputs, or what a recurrent layer's gates are made of."""
    seed = int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "little") >> 1
    generator = torch.Generator(device).manual_seed(seed)
    if name.endswith(("A_log", "dt_bias")):
        share = torch.rand(size, generator=generator, device=device)
        return (_rates(share) if name.endswith("A_log") else _times(share)).bfloat16()
    noise = torch.randn(size, generator=generator, device=device, dtype=torch.bfloat16)
    return noise.mul_(0.1).add_(mean) if len(size) == 1 else noise.mul_(size[-1] ** -0.5)


def _rates(share: torch.Tensor) -> torch.Tensor:
    """Logarithms of 1 to 16."""
    return (1 + 15 * share).log()


def _times(share: torch.Tensor) -> torch.Tensor:
    """What softplus makes 1e-3 to 1e-1 of."""
    return torch.expm1(torch.exp(math.log(1e-3) + share * math.log(1e2))).log()


def resized(shape: Shape, layers: int | None, hidden: int | None, vocab: int | None) -> Shape:
    """`shape` with fewer layers, or narrower, or with a smaller vocabulary, for a try."""
    wishes = {"num_hidden_layers": layers, "hidden_size": hidden, "vocab_size": vocab}
    return replace(shape, **{name: value for name, value in wishes.items() if value})
