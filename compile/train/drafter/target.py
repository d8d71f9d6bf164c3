"""The target while its drafter is trained: batches of equal length, whole sequences or a token at a time.

Plain PyTorch over the parameters that `weights.load` gives, for every family; no gradients. It agrees with serving to
rounding, not to the bit. Letters: B sequences, T tokens, H hidden_size, D head_dim, G kv heads, C cached tokens, V
vocabulary.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from tandem.compile.models.rope import rope_tables
from tandem.compile.models.spec import LINEAR_ATTENTION, HybridSpec, LlamaSpec, layer_types
from tandem.compile.models.weights import weight_name
from tandem.compile.train.drafter.recurrent import Recurrent
from tandem.compile.train.layers import turned


class Target:
    """A model in `dtype` on `device`: products in `dtype`, the residual stream in float32 (float64 in float64)."""

    def __init__(
        self, spec: LlamaSpec, tensors: Mapping[str, Tensor], dtype: torch.dtype, device: torch.device
    ) -> None:
        self.spec, self.dtype, self.device = spec, dtype, device
        self.wide = torch.promote_types(dtype, torch.float32)
        # Norms and gates keep their precision, as in serving.
        self._tensors = {n: t.to(device, dtype if t.ndim == 2 else self.wide) for n, t in tensors.items()}
        self._turns = [
            torch.from_numpy(table).to(device, self.wide)
            for table in rope_tables(spec.rope, spec.rotary_dim, spec.max_position_embeddings)
        ]
        self._layers = [
            (Recurrent if kind == LINEAR_ATTENTION else Attention)(self, layer)
            for layer, kind in enumerate(layer_types(spec))
        ]
        self._cached = 0

    @property
    def embedding(self) -> Tensor:
        """[V, H]"""
        return self._tensors["embedding"]

    @property
    def head(self) -> Tensor:
        """[V, H]"""
        return self._tensors[weight_name(self.spec, "head")]

    @property
    def final_norm(self) -> Tensor:
        """[H]: the last norm's weight, what the norm is multiplied with."""
        return self._tensors["final_norm"]

    def weight(self, name: str, layer: int) -> Tensor:
        return self._tensors[weight_name(self.spec, name, layer)]

    def bias(self, name: str, layer: int) -> Tensor | None:
        """A parameter that not every model has."""
        return self._tensors.get(weight_name(self.spec, name, layer))

    def norm(self, x: Tensor, weight: Tensor) -> Tensor:
        return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + self.spec.rms_norm_eps) * weight

    def linear(self, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        y = F.linear(x.to(weight.dtype), weight).to(self.wide)
        return y if bias is None else y + bias

    def angles(self, first: int, count: int) -> tuple[Tensor, Tensor]:
        """cos and sin [count, rotary_dim / 2] from position `first` on."""
        cos, sin = (table[first : first + count] for table in self._turns)
        return cos, sin

    @torch.no_grad()
    def sequence(self, ids: Tensor, taps: Sequence[int] = ()) -> tuple[Tensor, Tensor]:
        """ids [B, T] -> (the streams that enter the layers `taps`, side by side [B, T, n * H], final hidden [B, T, H]).

        The number of layers stands for what enters the final norm. Streams are in `dtype`; the hidden is behind it.
        """
        with torch.autocast(self.device.type, enabled=False):
            return self._run(ids, taps, cached=False)

    @torch.no_grad()
    def begin(self, batch: int, length: int) -> None:
        """Empty caches for `batch` texts of `length` tokens, which `step` fills."""
        self._cached = 0
        for layer in self._layers:
            layer.begin(batch, length)

    @torch.no_grad()
    def step(self, ids: Tensor) -> Tensor:
        """The next token of every text, ids [B] -> final hidden [B, H]."""
        hidden = self._run(ids[:, None], (), cached=True)[1][:, 0]
        self._cached += 1
        return hidden

    def end(self) -> None:
        """Gives the caches' memory back."""
        for layer in self._layers:
            layer.end()

    def logits(self, hidden: Tensor) -> Tensor:
        """[..., H] -> [..., V]"""
        return self.linear(hidden, self.head)

    def _run(self, ids: Tensor, taps: Sequence[int], *, cached: bool) -> tuple[Tensor, Tensor]:
        h, streams = self.embedding[ids].to(self.wide), dict[int, Tensor]()
        for index, layer in enumerate(self._layers):
            if index in taps:
                streams[index] = h
            x = self.norm(h, self.weight("input_norm", index))
            h = h + (layer.step(x, self._cached) if cached else layer.sequence(x))
            gate, up = self.linear(self.norm(h, self.weight("post_norm", index)), self.weight("gate_up", index)).chunk(
                2, -1
            )
            h = h + self.linear(F.silu(gate) * up, self.weight("down", index))
        streams[len(self._layers)] = h
        tapped = [streams[tap].to(self.dtype) for tap in taps]
        return torch.cat(tapped, -1) if tapped else h.new_empty(0), self.norm(h, self.final_norm)


class Attention:
    """Grouped heads over the whole sequence or a cache; of a hybrid each query head has a gate."""

    def __init__(self, target: Target, layer: int) -> None:
        self.target, self.layer, self.spec = target, layer, target.spec
        self.name = "qkvg" if isinstance(target.spec, HybridSpec) else "qkv"
        self._cache: tuple[Tensor, Tensor] | None = None

    def begin(self, batch: int, length: int) -> None:
        shape = batch, self.spec.num_key_value_heads, length, self.spec.head_dim
        k, v = (torch.empty(shape, dtype=self.target.dtype, device=self.target.device) for _ in range(2))
        self._cache = k, v

    def end(self) -> None:
        self._cache = None

    def sequence(self, x: Tensor) -> Tensor:
        """x [B, T, H] -> [B, T, H]"""
        q, k, v, gate = self._project(x, 0)
        return self._leave(F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True), gate)

    def step(self, x: Tensor, position: int) -> Tensor:
        """x [B, 1, H] -> [B, 1, H]"""
        assert self._cache is not None
        q, k, v, gate = self._project(x, position)
        for cache, new in zip(self._cache, (k, v), strict=True):
            cache[:, :, position] = new[:, :, 0]
        k, v = (cache[:, :, : position + 1] for cache in self._cache)
        return self._leave(F.scaled_dot_product_attention(q, k, v, enable_gqa=True), gate)

    def _project(self, x: Tensor, first: int) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
        """q, k and v [B, heads, T, D] in the target's dtype, and gates [B, T, query_size]."""
        target, spec, (batch, length, _) = self.target, self.spec, x.shape
        weight, bias = target.weight(self.name, self.layer), target.bias(f"{self.name}_bias", self.layer)
        sizes = [spec.query_size, spec.key_value_size, spec.key_value_size]
        y = target.linear(x, weight, bias)
        q, k, v, gate = torch.split(y, [*sizes, y.shape[-1] - sum(sizes)], -1)
        q, k, v = (part.view(batch, length, -1, spec.head_dim) for part in (q, k, v))
        if spec.head_norms:
            q, k = (target.norm(y, target.weight(n, self.layer)) for y, n in ((q, "q_norm"), (k, "k_norm")))
        angles = target.angles(first, length)
        q, k = turned(q, *angles), turned(k, *angles)
        q, k, v = (part.to(target.dtype).transpose(1, 2) for part in (q, k, v))
        return q, k, v, gate if gate.shape[-1] else None

    def _leave(self, mixed: Tensor, gate: Tensor | None) -> Tensor:
        target, y = self.target, mixed.transpose(1, 2).flatten(2).to(self.target.wide)
        y = y if gate is None else y * gate.sigmoid()
        return target.linear(y, target.weight("o", self.layer), target.bias("o_bias", self.layer))
