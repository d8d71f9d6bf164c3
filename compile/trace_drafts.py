"""Traces the parts of drafters, as `trace` does those of the model: its own layer (MTP), and block drafters (DFlash2).

Knows nothing of devices.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import torch

from tandem.compile.models import dflash2, llama, qwen3_5, qwen3_5_mtp
from tandem.compile.models.dflash2_config import Dflash2Spec
from tandem.compile.models.spec import HybridSpec, LlamaSpec
from tandem.compile.profile import Profile
from tandem.compile.trace import BLOCKS, LANES, OUTPUTS, RING, ROWS, Part, caches, export_part, ids, inputs, taps


@dataclass(frozen=True, slots=True)
class MtpParts:
    """What a pass of the layer that drafts is composed of; a sync has no guesses."""

    entrance: Part
    block: Part
    guesses: Part | None


@dataclass(frozen=True, slots=True)
class SyncParts:
    """What a block drafter's sync is composed of: all layers repeat `context`."""

    fuse: Part
    context: Part


@dataclass(frozen=True, slots=True)
class BlockParts:
    """What its draft is composed of: the layers behind the first repeat `block`."""

    embed: Part
    first: Part
    block: Part
    lattice: Part


@cache
def trace_mtp(spec: HybridSpec, profile: Profile, page_tokens: int, *, sync: bool) -> MtpParts:
    """Parts of a pass of the layer that drafts, or of one that only brings its cache up to date."""
    with torch.device("meta"):
        h = torch.empty(ROWS, spec.hidden_size)
        block = qwen3_5_mtp.Keys(spec) if sync else qwen3_5.AttentionBlock(spec)
        return MtpParts(
            entrance=export_part(qwen3_5_mtp.Entrance(spec), ids(ROWS), *taps(spec)),
            block=export_part(block, h, h.clone(), inputs(spec), *caches(spec, profile, page_tokens)),
            guesses=None if sync else export_part(qwen3_5_mtp.Guesses(spec), h, h.clone(), ids(OUTPUTS), *taps(spec)),
        )


@cache
def trace_tap(spec: LlamaSpec) -> Part:
    """The part that leaves one of the model's streams for a block drafter."""
    with torch.device("meta"):
        h = torch.empty(ROWS, spec.hidden_size)
        return export_part(dflash2.Tap(), h, h.clone(), *taps(spec))


@cache
def trace_block_sync(spec: Dflash2Spec, profile: Profile, page_tokens: int) -> SyncParts:
    """Parts of a pass that brings a block drafter's cache up to date."""
    with torch.device("meta"):
        x, ring = torch.empty(ROWS, spec.hidden_size), torch.empty(RING, spec.tap_width)
        memory = caches(spec, profile, page_tokens)
        return SyncParts(
            fuse=export_part(dflash2.Fuse(spec), ring, ids(ROWS)),
            context=export_part(dflash2.Context(spec), x, _block_inputs(spec), *memory),
        )


@cache
def trace_block_draft(target: LlamaSpec, spec: Dflash2Spec, profile: Profile, page_tokens: int) -> BlockParts:
    """Parts of a pass over whole blocks; `target` is the model whose embedding and head they share."""
    with torch.device("meta"):
        h, memory = torch.empty(ROWS, spec.hidden_size), caches(spec, profile, page_tokens)
        block, told = dflash2.Block(spec), _block_inputs(spec)
        return BlockParts(
            embed=export_part(llama.Embed(target), ids(ROWS)),
            first=export_part(block, h, None, told, *memory),
            block=export_part(block, h, h.clone(), told, *memory),
            lattice=export_part(dflash2.Lattice(spec), h, h.clone(), told, ids(ROWS), ids(OUTPUTS)),
        )


def _block_inputs(spec: Dflash2Spec) -> dflash2.Pass:
    table = torch.empty(spec.max_position_embeddings, spec.head_dim // 2)
    position, lane, slot, prefix = (ids(ROWS) for _ in range(4))
    return dflash2.Pass(position, lane, slot, prefix, ids(LANES, BLOCKS), table, table.clone())
