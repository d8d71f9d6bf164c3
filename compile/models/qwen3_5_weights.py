"""Which checkpoint tensors a qwen3_5 model is made of, layer by layer, and those it sets aside: vision and MTP.

Norms but the recurrent layers' last are stored as what is added to one.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial

import torch
from torch import Tensor

from tandem.compile.models.sources import Shape, Source, fused
from tandem.compile.models.spec import FULL_ATTENTION, LINEAR_ATTENTION, HybridSpec

WRAPPED = "model.language_model"
"""Where a vision-language checkpoint keeps its text model."""
VISION, MTP = ("model.visual.", "visual."), "mtp."


def text_root(names: Iterable[str]) -> str:
    """What the text model's tensors are named under."""
    return WRAPPED if any(name.startswith(f"{WRAPPED}.") for name in names) else "model"


def one_plus(parts: list[Tensor]) -> Tensor:
    """A norm's weight, in fp32 or wider: bf16 has too few bits for the sum."""
    (weight,) = parts
    return 1 + weight.to(torch.promote_types(weight.dtype, torch.float32))


def taps(parts: list[Tensor]) -> Tensor:
    """[channels, 1, W] as `causal_conv` reads it, [W * channels]: all channels of the oldest tap first."""
    (weight,) = parts
    return weight.squeeze(1).T.reshape(-1)


def gates_last(parts: list[Tensor], heads: int) -> Tensor:
    """q (each head's query, then its gate), k and v [width, ...] as q, k, v, gates."""
    q, k, v = parts
    query, gate = q.reshape(heads, 2, -1, *q.shape[1:]).unbind(1)
    return torch.cat((query.flatten(0, 1), k, v, gate.flatten(0, 1)))


def columns(parts: list[Tensor], half: int) -> Tensor:
    """The first or the second half of a matrix's inputs."""
    (weight,) = parts
    return weight.chunk(2, dim=1)[half]


def _norm(name: str, width: int) -> Source:
    return Source.of({f"{name}.weight": (width,)}, one_plus)


def layer_sources(spec: HybridSpec, layer_type: str) -> dict[str, Source]:
    """Every parameter of a block, from tensors named as below one layer."""
    hidden, inner = spec.hidden_size, spec.intermediate_size
    sources = {"input_norm": _norm("input_layernorm", hidden)}
    sources |= {FULL_ATTENTION: _attention, LINEAR_ATTENTION: _recurrent}[layer_type](spec)
    sources["post_norm"] = _norm("post_attention_layernorm", hidden)
    sources["gate_up"] = Source.of({f"mlp.{p}_proj.weight": (inner, hidden) for p in ("gate", "up")})
    sources["down"] = Source.of({"mlp.down_proj.weight": (hidden, inner)})
    return sources


def _attention(spec: HybridSpec) -> dict[str, Source]:
    hidden, query, kv = spec.hidden_size, spec.query_size, spec.key_value_size
    widths, make = {"q": 2 * query, "k": kv, "v": kv}, partial(gates_last, heads=spec.num_attention_heads)
    sources = {"qkvg": Source.of({f"self_attn.{p}_proj.weight": (n, hidden) for p, n in widths.items()}, make)}
    if spec.attention_bias:
        sources["qkvg_bias"] = Source.of({f"self_attn.{p}_proj.bias": (n,) for p, n in widths.items()}, make)
    sources |= {name: _norm(f"self_attn.{name}", spec.head_dim) for name in ("q_norm", "k_norm")}
    sources["o"] = Source.of({"self_attn.o_proj.weight": (hidden, query)})
    if spec.output_bias:
        sources["o_bias"] = Source.of({"self_attn.o_proj.bias": (hidden,)})
    return sources


def _recurrent(spec: HybridSpec) -> dict[str, Source]:
    hidden, heads, channels, value = (
        spec.hidden_size, spec.linear_num_value_heads, spec.conv_size, spec.linear_value_size,
    )  # fmt: skip
    conv: Shape = (channels, 1, spec.linear_conv_kernel_dim)
    parts: dict[str, dict[str, Shape]] = {
        "qkvz": {"in_proj_qkv.weight": (channels, hidden), "in_proj_z.weight": (value, hidden)},
        "ba": {"in_proj_b.weight": (heads, hidden), "in_proj_a.weight": (heads, hidden)},
        "conv": {"conv1d.weight": conv},
        "a_log": {"A_log": (heads,)},
        "dt_bias": {"dt_bias": (heads,)},
        "norm": {"norm.weight": (spec.linear_value_head_dim,)},
        "o": {"out_proj.weight": (hidden, value)},
    }
    make = {"conv": taps}
    return {name: Source.of(p, make.get(name, fused)).under("linear_attn.") for name, p in parts.items()}


def mtp_sources(spec: HybridSpec) -> dict[str, Source]:
    """The layer that drafts the token behind the next: two norms, a product of each, a block of attention, a norm.

    The checkpoint's product is of both norms side by side, the token's first; their two halves add up to it.
    """
    hidden = spec.hidden_size
    sources = {f"mtp.{name}_norm": _norm(f"mtp.pre_fc_norm_{name}", hidden) for name in ("embedding", "hidden")}
    for half, name in enumerate(("embedding", "hidden")):
        sources[f"mtp.fc_{name}"] = Source.of({"mtp.fc.weight": (hidden, 2 * hidden)}, partial(columns, half=half))
    block = layer_sources(spec, FULL_ATTENTION)
    sources |= {f"mtp.layers.0.{name}": source.under("mtp.layers.0.") for name, source in block.items()}
    sources["mtp.final_norm"] = _norm("mtp.norm", hidden)
    return sources
