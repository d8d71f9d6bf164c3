"""A checkpoint of a shape whose tensors are drawn when they are asked for: 49 GB that lie nowhere.

Each tensor depends on its name, the seed and the kind of device alone.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from math import prod

import torch

from bench.gpu.shapes import BF16, Shape
from bench.gpu.words import CHAT_TEMPLATE, tokenizer_json
from tandem.compile.checkpoints.base import Checkpoint, Progress, Stored, TokenizerFacts, missing_tensor
from tandem.compile.models.families import resolve
from tandem.compile.models.weights import weight_sources


class RandomCheckpoint(Checkpoint):
    """A llama of `shape`: bf16 matrices of N(0, 1 / fan-in), norms around 1, drawn on `device`, given on the host."""

    def __init__(self, shape: Shape, *, seed: int = 0, device: str = "cuda") -> None:
        facts = TokenizerFacts(tokenizer_json(shape.vocab_size), CHAT_TEMPLATE, "<|im_start|>", "<|im_end|>", ())
        super().__init__(f"random weights of shape {shape.name}", shape.config(), facts)
        self._seed, self._device = seed, torch.device(device)
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
        drawn = draw(self.stored(name).shape, f"{self._seed}:{name}", self._device)
        if drawn.device.type == "cpu":
            return drawn
        return torch.empty(drawn.shape, dtype=drawn.dtype, pin_memory=True).copy_(drawn)

    def content(self, name: str) -> memoryview:
        return memoryview(self.read(name).view(torch.uint8).numpy().reshape(-1).data)

    def digest(self, progress: Progress | None = None) -> str:
        """Of the recipe: its tensors follow from it."""
        recipe = [self.config, self.tokenizer_json, self._seed, self._device.type, torch.__version__]
        return hashlib.sha256(json.dumps(recipe, sort_keys=True).encode()).hexdigest()


def draw(size: tuple[int, ...], name: str, device: torch.device) -> torch.Tensor:
    """bf16 of `size` on `device`: a norm's weight, or a matrix [outputs, inputs] with a variance of 1 / inputs."""
    seed = int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "little") >> 1
    generator = torch.Generator(device).manual_seed(seed)
    noise = torch.randn(size, generator=generator, device=device, dtype=torch.bfloat16)
    return noise.mul_(0.1).add_(1.0) if len(size) == 1 else noise.mul_(size[-1] ** -0.5)


def resized(shape: Shape, layers: int | None, hidden: int | None, vocab: int | None) -> Shape:
    """`shape` with fewer layers, or narrower, or with a smaller vocabulary, for a try."""
    wishes = {"num_hidden_layers": layers, "hidden_size": hidden, "vocab_size": vocab}
    return replace(shape, **{name: value for name, value in wishes.items() if value})
