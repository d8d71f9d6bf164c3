"""Traces the parts of a model with torch.export: one layer of each type, static shapes, no weights read.

Knows nothing of devices. What the sizes below stand for is told apart by their values alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache, partial

import torch
from torch import Tensor, nn
from torch.export.graph_signature import InputKind
from torch.fx import Graph

from tandem.compile.models import llama, qwen3_5, qwen3_5_mtp
from tandem.compile.models.dflash2_config import Dflash2Spec
from tandem.compile.models.spec import FULL_ATTENTION, LINEAR_ATTENTION, HybridSpec, LlamaSpec, layer_types
from tandem.compile.profile import Profile
from tandem.keys import MAX_TREE_ROWS

ROWS, OUTPUTS, MOVES, LANES, BLOCKS, PAGES, SLOTS, RING = 13, 5, 6, 3, 11, 7, 4, 9
"""Traced sizes of the dimensions that a program reads from memory."""


@dataclass(frozen=True, slots=True)
class Part:
    """An exported graph. `parameters` maps placeholders to parameter names; the other placeholders are inputs,
    named as the forward names them."""

    graph: Graph
    parameters: dict[str, str]


@dataclass(frozen=True, slots=True)
class Parts:
    """What a pass is composed of: embed, the first block, the block that all other layers of its type repeat, head."""

    embed: Part
    first: Part
    blocks: Mapping[str, Part]  # by layer type
    head: Part


def ids(*shape: int) -> Tensor:
    """Whole numbers of this shape, int32."""
    return torch.empty(shape, dtype=torch.int32)


def export_part(module: nn.Module, *args: object) -> Part:
    """The graph of `module` for arguments of these shapes."""
    exported = torch.export.export(module, args)
    parameters = {
        spec.arg.name: spec.target
        for spec in exported.graph_signature.input_specs
        if spec.kind is InputKind.PARAMETER and spec.target is not None
    }
    return Part(exported.graph, parameters)


def caches(spec: LlamaSpec | Dflash2Spec, profile: Profile, page_tokens: int) -> tuple[Tensor, Tensor]:
    """Pages of K and of V of one layer of attention."""
    heads, width = spec.num_key_value_heads, spec.head_dim
    return (
        torch.empty(PAGES, heads, width, page_tokens, dtype=profile.cache),
        torch.empty(PAGES, heads, page_tokens, width, dtype=profile.cache),
    )


def _states(spec: HybridSpec) -> tuple[Tensor, Tensor]:
    return torch.empty(SLOTS, *spec.state_shape), torch.empty(SLOTS, *spec.tail_shape)


def _factors(spec: HybridSpec) -> qwen3_5.Factors:
    return qwen3_5.Factors(*(torch.empty(MAX_TREE_ROWS, *shape) for shape in spec.factor_shapes))


def inputs(spec: LlamaSpec) -> llama.Pass | qwen3_5.Pass:
    """What every block of the model is told of the rows."""
    table = torch.empty(spec.max_position_embeddings, spec.rotary_dim // 2)
    position, lane, slot, prefix = (ids(ROWS) for _ in range(4))
    ancestor, block_table = ids(ROWS, MAX_TREE_ROWS), ids(LANES, BLOCKS)
    told = llama.Pass(position, lane, slot, prefix, ancestor, block_table, table, table.clone())
    return qwen3_5.Pass(*told, ids(ROWS), ids(LANES)) if isinstance(spec, HybridSpec) else told


def taps(spec: LlamaSpec) -> tuple[Tensor, Tensor]:
    """The ring, and the row of it that each row of a pass reads or leaves."""
    return torch.empty(RING, spec.hidden_size), ids(ROWS)


@cache
def trace_pass(
    spec: LlamaSpec, profile: Profile, page_tokens: int, *, tree: bool, keep: bool = True, tapped: bool = False
) -> Parts:
    """Parts of a pass that keeps all its rows, or, with `tree`, of one whose rows gather their ancestors.

    Without `keep`, which only recurrent layers care for, rows leave the state as it was and factors for a commit. With
    `tapped` the head leaves what a drafter reads.
    """
    with torch.device("meta"):
        h = torch.empty(ROWS, spec.hidden_size)
        make: dict[str, Callable[..., nn.Module]] = {FULL_ATTENTION: llama.Block}
        memory: dict[str, tuple[object, ...]] = {FULL_ATTENTION: caches(spec, profile, page_tokens)}
        if isinstance(spec, HybridSpec):
            recurrent = partial(qwen3_5.RecurrentBlock, rounded=profile.matrix == "bf16")
            make = {FULL_ATTENTION: qwen3_5.AttentionBlock, LINEAR_ATTENTION: recurrent}
            memory[LINEAR_ATTENTION] = _states(spec) if keep else (*_states(spec), _factors(spec))

        def block(layer_type: str, delta: Tensor | None) -> Part:
            return export_part(make[layer_type](spec, tree=tree), h, delta, inputs(spec), *memory[layer_type])

        types = layer_types(spec)
        head, ring = (qwen3_5_mtp.TappedHead(spec), taps(spec)) if tapped else (llama.Head(spec), ())
        return Parts(
            embed=export_part(llama.Embed(spec), ids(ROWS)),
            first=block(types[0], None),
            blocks={layer_type: block(layer_type, h.clone()) for layer_type in dict.fromkeys(types)},
            head=export_part(head, h, h.clone(), ids(OUTPUTS), *ring),
        )


def trace_commit(spec: LlamaSpec, profile: Profile, page_tokens: int) -> Part:
    """The part that moves one layer's K and V."""
    with torch.device("meta"):
        moves = (ids(MOVES) for _ in range(3))
        return export_part(llama.Commit(), *caches(spec, profile, page_tokens), *moves, ids(LANES, BLOCKS))


def trace_recurrent_commit(spec: HybridSpec) -> Part:
    """The part that moves one recurrent layer's state and tail on; a lowering makes it that of all of them."""
    with torch.device("meta"):
        moves = (ids(MOVES) for _ in range(3))
        return export_part(qwen3_5.RecurrentCommit(), _factors(spec), *_states(spec), ids(LANES), *moves)
