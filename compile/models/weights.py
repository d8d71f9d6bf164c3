"""Where a model's parameters come from: which checkpoint tensors make each, all of them checked by name and shape.

Knows nothing of file formats: a checkpoint is anything that lists, measures and reads tensors by name.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator

import torch
from torch import Tensor

from tandem.compile.models import qwen3_5_weights as qwen3_5
from tandem.compile.models.sources import Shape, Source, TensorSource, fused
from tandem.compile.models.spec import HybridSpec, LlamaSpec
from tandem.compile.models.stored import listed, match, read_sources, require_real
from tandem.errors import CheckpointError

log = logging.getLogger("tandem.compile")


def weight_name(spec: LlamaSpec, name: str, layer: int | None = None) -> str:
    """The full name of a module's parameter: `layers.3.qkv`; a tied head is the embedding."""
    if layer is not None:
        return f"layers.{layer}.{name}"
    return "embedding" if name == "head" and spec.tie_word_embeddings else name


def mtp_weight_name(spec: LlamaSpec, name: str, layer: int | None = None) -> str:
    """The same of the layer that drafts, whose embedding and head are the model's."""
    if layer is not None:
        return f"mtp.layers.{layer}.{name}"
    return weight_name(spec, name) if name in ("embedding", "head") else f"mtp.{name}"


def has_mtp(spec: LlamaSpec, checkpoint: TensorSource) -> bool:
    """Whether the checkpoint brings a layer that drafts."""
    return isinstance(spec, HybridSpec) and any(name.startswith(qwen3_5.MTP) for name in checkpoint.names())


def mtp_sources(spec: LlamaSpec) -> dict[str, Source]:
    """As `weight_sources` of that layer; none for a family that has no such layer."""
    return qwen3_5.mtp_sources(spec) if isinstance(spec, HybridSpec) else {}


def weight_sources(spec: LlamaSpec, root: str = "model") -> dict[str, Source]:
    """Every parameter by full name, in the order of the forward; `head` is absent where it is tied.

    `root` is what the checkpoint names the tensors under.
    """
    hidden = spec.hidden_size
    sources = {"embedding": Source.of({f"{root}.{_EMBEDDING}": (spec.vocab_size, hidden)})}
    for layer in range(spec.num_hidden_layers):
        for name, source in _layer_sources(spec, layer).items():
            sources[weight_name(spec, name, layer)] = source.under(f"{root}.layers.{layer}.")
    norm = qwen3_5.one_plus if isinstance(spec, HybridSpec) else fused
    sources["final_norm"] = Source.of({f"{root}.norm.weight": (hidden,)}, norm)
    if not spec.tie_word_embeddings:
        sources["head"] = Source.of({_HEAD: (spec.vocab_size, hidden)})
    return sources


def require_tensors(spec: LlamaSpec, checkpoint: TensorSource) -> None:
    """Raises CheckpointError, as `load` does, for a checkpoint whose tensors are not those of `spec`; reads its header.

    Only of a tied head that is stored all the same it reads the tensor, and the embedding.
    """
    _checked(spec, checkpoint)


def load(spec: LlamaSpec, checkpoint: TensorSource) -> Iterator[tuple[str, Tensor]]:
    """Parameters by full name, read one at a time, in the checkpoint's own dtype; norms of 1 + w in fp32.

    Names and shapes are checked before the first tensor is read. CheckpointError names a tensor that is
    missing, of another shape than wanted, or unknown to the family, and, as it is read, one that is not finite. Of a
    vision-language checkpoint the text model is read; what is skipped is logged.
    """
    sources, _ = _checked(spec, checkpoint)
    if vision := _vision(spec, checkpoint):
        log.warning("%s: skipped %d vision tensors; this build is of the text model", checkpoint.origin, len(vision))
    return read_sources(sources, checkpoint)


def load_mtp(spec: LlamaSpec, checkpoint: TensorSource) -> Iterator[tuple[str, Tensor]]:
    """The parameters of the layer that drafts, `mtp.*`, as `load` gives the others; none where there is no such layer.

    They are no part of the model: nothing but a drafter asks for them.
    """
    _, drafting = _checked(spec, checkpoint)
    return read_sources(drafting, checkpoint)


def _vision(spec: LlamaSpec, checkpoint: TensorSource) -> set[str]:
    """Tensors of what sees, in a vision-language checkpoint."""
    hybrid = isinstance(spec, HybridSpec)
    return {name for name in checkpoint.names() if hybrid and name.startswith(qwen3_5.VISION)}


def _checked(spec: LlamaSpec, checkpoint: TensorSource) -> tuple[dict[str, Source], dict[str, Source]]:
    """Sources of the model and of its drafting layer, the checkpoint held against both."""
    names, root, drafting = set(checkpoint.names()), "model", dict[str, Source]()
    if isinstance(spec, HybridSpec):
        root = qwen3_5.text_root(names)
        names -= _vision(spec, checkpoint)
        if has_mtp(spec, checkpoint):
            drafting = mtp_sources(spec)
    sources = weight_sources(spec, root)
    _check(spec, [*sources.values(), *drafting.values()], names, checkpoint)
    return sources, drafting


def _check(spec: LlamaSpec, sources: Iterable[Source], found: set[str], checkpoint: TensorSource) -> None:
    asked = list(sources)
    unknown = [name for name in match(asked, found, checkpoint) if not name.endswith(_RECOMPUTED)]
    if spec.tie_word_embeddings and _HEAD in unknown:
        unknown.remove(_HEAD)
        require_real(_HEAD, checkpoint)
        embedding = next(name for source in asked for name in source.names if name.endswith(_EMBEDDING))
        if not torch.equal(checkpoint.read(_HEAD), checkpoint.read(embedding)):
            raise CheckpointError(
                f"{checkpoint.origin}: {_HEAD} differs from {embedding} although tie_word_embeddings is true; "
                "set it to false in config.json"
            )
    if unknown:
        raise CheckpointError(
            f"{checkpoint.origin}: family {spec.family} has no place for {listed(unknown)}; "
            "is the config's architecture the right one?"
        )


def _layer_sources(spec: LlamaSpec, layer: int) -> dict[str, Source]:
    """Per parameter of a block: the tensors of one layer."""
    if isinstance(spec, HybridSpec):
        return qwen3_5.layer_sources(spec, spec.layer_types[layer])
    return {name: Source.of(parts) for name, parts in _llama_parts(spec).items()}


def _llama_parts(spec: LlamaSpec) -> dict[str, dict[str, Shape]]:
    """Per parameter of a llama's block: checkpoint tensors of one layer and their shapes."""
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


_EMBEDDING, _HEAD = "embed_tokens.weight", "lm_head.weight"
# Old checkpoints carry buffers that follow from the config.
_RECOMPUTED = ("rotary_emb.inv_freq", "rotary_emb.cos_cached", "rotary_emb.sin_cached")
