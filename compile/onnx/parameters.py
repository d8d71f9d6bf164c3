"""A bundle's parameters as its model names and shapes them, taken out of the kernels' layout block by block.

Knows nothing of ONNX.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

import msgspec
import numpy as np
import torch
from torch import Tensor

from tandem.artifacts.reader import Bundle
from tandem.artifacts.weights import MappedWeights
from tandem.compile.cpu.panels import PANEL, SAFETENSORS, stored_shape, unpack
from tandem.compile.models.spec import LlamaSpec
from tandem.compile.models.weights import weight_sources
from tandem.compile.profile import Profile, find_profile
from tandem.errors import BundleCorrupt, BundleMismatch, UsageError

BLOCK_BYTES = 64 << 20
"""About how much of a parameter is in memory at a time."""


@dataclass(slots=True)
class Parameters:
    """What a model computes with. `context_length` is the most tokens it is meant for.

    BundleCorrupt if the stored tensors are not those that the spec asks for.
    """

    spec: LlamaSpec
    profile: Profile
    context_length: int
    weights: MappedWeights
    shapes: dict[str, tuple[int, ...]] = field(init=False)
    """[N, K] or [N] by name."""

    def __post_init__(self) -> None:
        self.shapes = {name: source.shape for name, source in weight_sources(self.spec).items()}
        for name, shape in self.shapes.items():
            form = self.profile.format(name, shape)
            self._check(name, SAFETENSORS[form], stored_shape(shape, form))
        for name in ("rope.cos", "rope.sin"):
            rows = self.weights.spans[name].shape[0] if name in self.weights.spans else self.context_length
            self._check(name, "F32", (max(rows, self.context_length), self.spec.rotary_dim // 2))

    @classmethod
    def of(cls, bundle: Bundle) -> Parameters:
        """Those of `bundle`. BundleMismatch for a spec or a profile of another version, UsageError for a hybrid."""
        manifest = bundle.manifest
        if manifest.geometry.recurrent_layers:
            raise UsageError(f"{bundle.path}: {manifest.family} has recurrent layers, which are not exported as ONNX")
        return cls(
            spec=read_spec(manifest.resolved.spec),
            profile=find_profile(manifest.profile),
            context_length=manifest.geometry.context_length,
            weights=bundle.weights,
        )

    def dtype(self, name: str) -> torch.dtype:
        """What the operators take a parameter as: bf16 if it is stored so, else fp32, also for low-bit ones."""
        return torch.bfloat16 if self.profile.format(name, self.shapes[name]) == "bf16" else torch.float32

    def blocks(self, name: str) -> Iterator[Tensor]:
        """A parameter in its `dtype`, some of its rows at a time."""
        shape, stored = self.shapes[name], self._stored(name)
        form = self.profile.format(name, shape)
        if len(shape) == 1:
            yield unpack(stored, form, shape)
            return
        step = max(1, BLOCK_BYTES // (4 * PANEL * shape[1]))
        for first in range(0, len(stored), step):
            panels = stored[first : first + step]
            rows = min(PANEL * len(panels), shape[0] - PANEL * first)
            yield unpack(panels, form, (rows, shape[1])).to(self.dtype(name))

    def read(self, name: str) -> Tensor:
        """A whole parameter in its `dtype`."""
        return torch.cat(list(self.blocks(name)))

    def table(self, name: str) -> Tensor:
        """`cos` or `sin` of positions 0..context_length - 1, fp32 [context_length, head_dim / 2]."""
        return torch.from_numpy(self._stored(f"rope.{name}")[: self.context_length].copy())

    def _stored(self, name: str) -> np.ndarray:
        dtype = {"F32": np.float32, "BF16": np.uint16, "U8": np.uint8}[self.weights.dtype(name)]
        return self.weights.bytes(name).view(dtype).reshape(self.weights.shape(name))

    def _check(self, name: str, dtype: str, shape: tuple[int, ...]) -> None:
        span = self.weights.spans.get(name)
        if span is None or (span.dtype, span.shape) != (dtype, shape):
            found = f"{span.dtype} {list(span.shape)}" if span else "missing"
            raise BundleCorrupt(f"weights.safetensors: {name} is {found}, the model asks for {dtype} {list(shape)}")


def read_spec(fields: Mapping[str, Any]) -> LlamaSpec:
    """The spec as a manifest records it. BundleMismatch, which names the field, for one of another version."""
    try:
        spec = msgspec.convert(fields, LlamaSpec)
    except msgspec.ValidationError as error:
        raise BundleMismatch(f"manifest.json: resolved.spec: {error}; compile the model again") from None
    if unknown := sorted(set(fields) - set(asdict(spec))):
        raise BundleMismatch(f"manifest.json: resolved.spec has the unknown {unknown[0]}; compile the model again")
    return spec
