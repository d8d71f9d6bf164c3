"""Where a llama family's parameters come from: checkpoint tensors by name and shape, fused along dimension 0.

Knows nothing of file formats: a checkpoint is anything that lists, measures and reads tensors by name.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from tandem.compile.models.spec import LlamaSpec
from tandem.errors import CheckpointError

Shape = tuple[int, ...]


class TensorSource(Protocol):
    """What `load` reads from: tensors under their Hugging Face names; `origin` says where they lie, for messages."""

    origin: str

    def names(self) -> Iterable[str]: ...

    def shape(self, name: str) -> Shape: ...

    def read(self, name: str) -> Tensor: ...


@dataclass(frozen=True, slots=True)
class Source:
    """The checkpoint tensors that, one after another along dimension 0, make one parameter."""

    names: tuple[str, ...]
    shapes: tuple[Shape, ...]

    @property
    def shape(self) -> Shape:
        """The parameter's shape."""
        return sum(shape[0] for shape in self.shapes), *self.shapes[0][1:]


def weight_name(spec: LlamaSpec, name: str, layer: int | None = None) -> str:
    """The full name of a module's parameter: `layers.3.qkv`; a tied head is the embedding."""
    if layer is not None:
        return f"layers.{layer}.{name}"
    return "embedding" if name == "head" and spec.tie_word_embeddings else name


def weight_sources(spec: LlamaSpec) -> dict[str, Source]:
    """Every parameter by full name, in the order of the forward; `head` is absent where it is tied."""
    hidden = spec.hidden_size
    sources = {"embedding": Source((_EMBEDDING,), ((spec.vocab_size, hidden),))}
    for layer in range(spec.num_hidden_layers):
        for name, parts in _layer_parts(spec).items():
            sources[weight_name(spec, name, layer)] = Source(
                tuple(f"model.layers.{layer}.{part}" for part in parts), tuple(parts.values())
            )
    sources["final_norm"] = Source(("model.norm.weight",), ((hidden,),))
    if not spec.tie_word_embeddings:
        sources["head"] = Source((_HEAD,), ((spec.vocab_size, hidden),))
    return sources


def load(spec: LlamaSpec, checkpoint: TensorSource) -> Iterator[tuple[str, Tensor]]:
    """Parameters by full name, read one at a time, in the checkpoint's own dtype.

    Names and shapes are checked before the first tensor is read. CheckpointError names a tensor that is
    missing, of another shape than wanted, or unknown to the family.
    """
    sources = weight_sources(spec)
    _check(spec, sources, checkpoint)
    return _read(sources, checkpoint)


def _read(sources: dict[str, Source], checkpoint: TensorSource) -> Iterator[tuple[str, Tensor]]:
    for name, source in sources.items():
        parts = [checkpoint.read(part) for part in source.names]
        yield name, parts[0] if len(parts) == 1 else torch.cat(parts)


def _check(spec: LlamaSpec, sources: dict[str, Source], checkpoint: TensorSource) -> None:
    found = set(checkpoint.names())
    wanted = {name: shape for s in sources.values() for name, shape in zip(s.names, s.shapes, strict=True)}
    if missing := [name for name in wanted if name not in found]:
        raise CheckpointError(f"{checkpoint.origin}: lacks {_listed(missing)}; fetch it again")
    for name, shape in wanted.items():
        if tuple(checkpoint.shape(name)) != shape:
            raise CheckpointError(
                f"{checkpoint.origin}: {name} has shape {tuple(checkpoint.shape(name))}, but the config wants {shape}; "
                "do config and weights belong together?"
            )
    unknown = sorted(name for name in found - wanted.keys() if not name.endswith(_RECOMPUTED))
    if spec.tie_word_embeddings and _HEAD in unknown:
        unknown.remove(_HEAD)
        if not torch.equal(checkpoint.read(_HEAD), checkpoint.read(_EMBEDDING)):
            raise CheckpointError(
                f"{checkpoint.origin}: {_HEAD} differs from {_EMBEDDING} although tie_word_embeddings is true; "
                "set it to false in config.json"
            )
    if unknown:
        raise CheckpointError(
            f"{checkpoint.origin}: family {spec.family} has no place for {_listed(unknown)}; "
            "is the config's architecture the right one?"
        )


def _layer_parts(spec: LlamaSpec) -> dict[str, dict[str, Shape]]:
    """Per parameter of a block: checkpoint tensors of one layer and their shapes."""
    hidden, inner, query, kv = spec.hidden_size, spec.intermediate_size, spec.query_size, spec.key_value_size
    widths = {"q": query, "k": kv, "v": kv}
    parts: dict[str, dict[str, Shape]] = {"input_norm": {"input_layernorm.weight": (hidden,)}}
    parts["qkv"] = {f"self_attn.{p}_proj.weight": (width, hidden) for p, width in widths.items()}
    if spec.attention_bias:
        parts["qkv_bias"] = {f"self_attn.{p}_proj.bias": (width,) for p, width in widths.items()}
    if spec.head_norms:
        parts["q_norm"] = {"self_attn.q_norm.weight": (spec.head_dim,)}
        parts["k_norm"] = {"self_attn.k_norm.weight": (spec.head_dim,)}
    parts["o"] = {"self_attn.o_proj.weight": (hidden, query)}
    if spec.output_bias:
        parts["o_bias"] = {"self_attn.o_proj.bias": (hidden,)}
    parts["post_norm"] = {"post_attention_layernorm.weight": (hidden,)}
    parts["gate_up"] = {f"mlp.{p}_proj.weight": (inner, hidden) for p in ("gate", "up")}
    parts["down"] = {"mlp.down_proj.weight": (hidden, inner)}
    return parts


def _listed(names: list[str]) -> str:
    shown = ", ".join(names[:3])
    return shown if len(names) <= 3 else f"{shown} and {len(names) - 3} more"


_EMBEDDING, _HEAD = "model.embed_tokens.weight", "lm_head.weight"
# Old checkpoints carry buffers that follow from the config.
_RECOMPUTED = ("rotary_emb.inv_freq", "rotary_emb.cos_cached", "rotary_emb.sin_cached")
