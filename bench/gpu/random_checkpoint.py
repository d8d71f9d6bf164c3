"""A checkpoint of a shape whose tensors are drawn when they are asked for: 49 GB that lie nowhere.

Each tensor depends on its name, the seed and the kind of device alone. Gates of recurrent layers are drawn as such
models begin their training: states forget within some tokens to a thousand, and stay finite.
"""

from __future__ import annotations

import hashlib
import json
import math
from dataclasses import replace
from math import prod

import torch

from bench.gpu.shapes import BF16, HybridShape, Shape
from bench.gpu.words import CHAT_TEMPLATE, tokenizer_json
from tandem.compile.checkpoints.base import Checkpoint, Progress, Stored, TokenizerFacts, missing_tensor
from tandem.compile.models.families import resolve
from tandem.compile.models.weights import weight_sources


class RandomCheckpoint(Checkpoint):
    """A model of `shape`: bf16 matrices of N(0, 1 / fan-in), norms around 1, drawn on `device`, given on the host.

    A hybrid stores most norms as what is added to one.
    """

    def __init__(self, shape: Shape, *, seed: int = 0, device: str = "cuda") -> None:
        facts = TokenizerFacts(tokenizer_json(shape.vocab_size), CHAT_TEMPLATE, "<|im_start|>", "<|im_end|>", ())
        super().__init__(f"random weights of shape {shape.name}", shape.config(), facts)
        self._seed, self._device, self._hybrid = seed, torch.device(device), isinstance(shape, HybridShape)
        if self._device.type == "cuda":
            torch.cuda.init()  # before Tandem asks the driver: it wants all kernels loaded at once, torch has thousands
        sources = weight_sources(resolve(self.config)).values()
        self._shapes = {name: size for s in sources for name, size in zip(s.names, s.shapes, strict=True)}

    def names(self) -> list[str]:
        return sorted(self._shapes)

    def stored(self, name: str) -> Stored:
        if name not in self._shapes:
            raise missing_tensor(self.origin, name)
        return Stored("BF16", self._shapes[name], BF16 * prod(self._shapes[name]))

    def read(self, name: str) -> torch.Tensor:
        added = self._hybrid and not name.endswith("linear_attn.norm.weight")
        drawn = draw(self.stored(name).shape, f"{self._seed}:{name}", self._device, mean=0.0 if added else 1.0)
        if drawn.device.type == "cpu":
            return drawn
        return torch.empty(drawn.shape, dtype=drawn.dtype, pin_memory=True).copy_(drawn)

    def content(self, name: str) -> memoryview:
        return memoryview(self.read(name).view(torch.uint8).numpy().reshape(-1).data)

    def digest(self, progress: Progress | None = None) -> str:
        """Of the recipe: its tensors follow from it."""
        recipe = [self.config, self.tokenizer_json, self._seed, self._device.type, torch.__version__]
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
