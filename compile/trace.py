"""Traces the parts of a model with torch.export: one layer of each type, static shapes, no weights read.

Knows nothing of devices. What the sizes below stand for is told apart by their values alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor, nn
from torch.export.graph_signature import InputKind
from torch.fx import Graph

from tandem.compile.models.llama import Block, Commit, Embed, Head, Pass
from tandem.compile.models.spec import LlamaSpec
from tandem.compile.profile import Profile
from tandem.keys import MAX_TREE_ROWS

ROWS, OUTPUTS, MOVES, LANES, BLOCKS, PAGES = 13, 5, 6, 3, 11, 7
"""Traced sizes of the dimensions that a program reads from memory."""


@dataclass(frozen=True, slots=True)
class Part:
    """An exported graph. `parameters` maps placeholders to parameter names; the other placeholders are inputs,
    named as the forward names them."""

    graph: Graph
    parameters: dict[str, str]


@dataclass(frozen=True, slots=True)
class Parts:
    """What a pass is composed of: embed, the first block, the block that all other layers repeat, head."""

    embed: Part
    first: Part
    block: Part
    head: Part


def _ids(*shape: int) -> Tensor:
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


def _caches(spec: LlamaSpec, profile: Profile, page_tokens: int) -> tuple[Tensor, Tensor]:
    heads, width = spec.num_key_value_heads, spec.head_dim
    return (
        torch.empty(PAGES, heads, width, page_tokens, dtype=profile.cache),
        torch.empty(PAGES, heads, page_tokens, width, dtype=profile.cache),
    )


@cache
def trace_pass(spec: LlamaSpec, profile: Profile, page_tokens: int, *, tree: bool) -> Parts:
    """Parts of a pass that keeps all its rows, or, with `tree`, of one whose rows gather their ancestors."""
    with torch.device("meta"):
        h = torch.empty(ROWS, spec.hidden_size)
        table = torch.empty(spec.max_position_embeddings, spec.head_dim // 2)
        position, lane, slot, prefix = (_ids(ROWS) for _ in range(4))
        ancestor, block_table = _ids(ROWS, MAX_TREE_ROWS), _ids(LANES, BLOCKS)
        inputs = Pass(position, lane, slot, prefix, ancestor, block_table, table, table.clone())
        caches = _caches(spec, profile, page_tokens)
        block = Block(spec, tree=tree)
        return Parts(
            embed=export_part(Embed(spec), _ids(ROWS)),
            first=export_part(block, h, None, inputs, *caches),
            block=export_part(block, h, h.clone(), inputs, *caches),
            head=export_part(Head(spec), h, h.clone(), _ids(OUTPUTS)),
        )


def trace_commit(spec: LlamaSpec, profile: Profile, page_tokens: int) -> Part:
    """The part that moves one layer's K and V."""
    with torch.device("meta"):
        moves = (_ids(MOVES) for _ in range(3))
        return export_part(Commit(), *_caches(spec, profile, page_tokens), *moves, _ids(LANES, BLOCKS))
