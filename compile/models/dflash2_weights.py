"""Where a DFlash2 drafter's parameters come from: the published layout of its checkpoint, all checked before a read.

Knows nothing of files. Parameters are named as those of `dflash2`'s modules, a layer's below `layers.N.`; beside a
target's all of them stand below `draft.`.
"""

from __future__ import annotations

from collections.abc import Iterator

from torch import Tensor

from tandem.compile.models.dflash2_config import Dflash2Spec
from tandem.compile.models.sources import Shape, Source, TensorSource
from tandem.compile.models.spec import LlamaSpec
from tandem.compile.models.stored import listed, match, read_sources
from tandem.compile.models.weights import weight_name as targets_name
from tandem.errors import CheckpointError

COS, SIN = "draft.rope.cos", "draft.rope.sin"
"""Its rotary tables, beside a target's."""
IN, OUT = 0, 1
"""Sides of a sublayer, as the checkpoint lays out its convolution."""


def weight_name(target: LlamaSpec, name: str, layer: int | None = None) -> str:
    """The full name of a module's parameter beside the target's, whose embedding and head are its own."""
    if layer is not None:
        return f"draft.layers.{layer}.{name}"
    return targets_name(target, name) if name in ("embedding", "head") else f"draft.{name}"


def drafter_sources(spec: Dflash2Spec) -> dict[str, Source]:
    """Every parameter by name, in the order of the forward; the target's embedding and head are not among them."""
    hidden, rank = spec.hidden_size, spec.selector_rank
    sources = {
        "fc": Source.of({"fc.weight": (hidden, spec.tap_width)}),
        "hidden_norm": Source.of({"hidden_norm.weight": (hidden,)}),
    }
    for layer in range(spec.num_hidden_layers):
        for name, source in _layer_sources(spec).items():
            sources[f"layers.{layer}.{name}"] = source.under(f"layers.{layer}.")
    sources["final_norm"] = Source.of({"norm.weight": (hidden,)})
    sources["gate"] = Source.of({"candidate_selector.hidden_projection.weight": (rank, hidden)})
    for name in ("predecessor", "successor"):
        sources[name] = Source.of({f"candidate_selector.{name}_codebook": (spec.vocab_size, rank)})
    return sources


def require_drafter_tensors(spec: Dflash2Spec, checkpoint: TensorSource) -> dict[str, Source]:
    """The sources, once the checkpoint has what they ask for and nothing else; CheckpointError otherwise."""
    sources = drafter_sources(spec)
    if unknown := match(sources.values(), set(checkpoint.names()), checkpoint):
        raise CheckpointError(
            f"{checkpoint.origin}: a DFlash2 drafter has no place for {listed(unknown)}; is it of this architecture?"
        )
    return sources


def load_drafter(spec: Dflash2Spec, checkpoint: TensorSource) -> Iterator[tuple[str, Tensor]]:
    """Parameters by name, read one at a time, in the checkpoint's own dtype.

    Names and shapes are checked before the first tensor is read. CheckpointError names a tensor that is missing, of
    another shape than wanted, unknown, or, as it is read, not finite.
    """
    return read_sources(require_drafter_tensors(spec, checkpoint), checkpoint)


def _layer_sources(spec: Dflash2Spec) -> dict[str, Source]:
    """Per parameter of a block: the tensors of one layer."""
    hidden, inner, query, kv = spec.hidden_size, spec.intermediate_size, spec.query_size, spec.key_value_size
    parts: dict[str, dict[str, Shape]] = {
        "input_norm": {"input_layernorm.weight": (hidden,)},
        "q": {"self_attn.q_proj.weight": (query, hidden)},
        "kv": {f"self_attn.{p}_proj.weight": (kv, hidden) for p in "kv"},
        "q_norm": {"self_attn.q_norm.weight": (spec.head_dim,)},
        "k_norm": {"self_attn.k_norm.weight": (spec.head_dim,)},
        "o": {"self_attn.o_proj.weight": (hidden, query)},
        "post_norm": {"post_attention_layernorm.weight": (hidden,)},
        "gate_up": {f"mlp.{p}_proj.weight": (inner, hidden) for p in ("gate", "up")},
        "down": {"mlp.down_proj.weight": (hidden, inner)},
    }
    sources = {name: Source.of(tensors) for name, tensors in parts.items()}
    for name, stored in (("attention", "attention_conv"), ("mlp", "mlp_conv")):
        kernels: dict[str, Shape] = {f"{stored}.base_kernel": (2, spec.conv_kernel_size, hidden)}
        sources[f"{name}_conv_in"] = Source.of(kernels, lambda tensors: tensors[0][IN].flatten())
        sources[f"{name}_conv_out"] = Source.of(kernels, lambda tensors: tensors[0][OUT].flatten())
        sources[f"{name}_delta"] = Source.of({f"{stored}.kernel_projection.weight": (2 * spec.delta_size, hidden)})
    return sources
