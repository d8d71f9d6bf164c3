"""Passes for a GPU, and the memory that they are composed for.

Knows nothing of operators; their rules stand in `rules`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from tandem.artifacts.io import Geometry
from tandem.compile.compose import PAGE_TOKENS, Composer, drafter_geometry, recurrent_facts
from tandem.compile.cuda import entries
from tandem.compile.drafters import Drafter
from tandem.compile.models.dflash2_config import Dflash2Spec
from tandem.compile.models.qwen3_5_mtp import LENGTH
from tandem.compile.models.spec import FULL_ATTENTION, LlamaSpec, layer_types
from tandem.compile.profile import Format, Profile
from tandem.wish import ID_BITS

MAX_LANES = 8
MAX_OUTPUTS = 32


def page_planes(spec: LlamaSpec | Dflash2Spec, profile: Profile) -> tuple[tuple[int, int], tuple[int, int]]:
    """One layer's K and V in a page, as (groups, bytes): see `Geometry.kv_planes`."""
    plane = spec.num_key_value_heads, spec.head_dim * profile.cache.itemsize
    return plane, plane


def geometry(spec: LlamaSpec, profile: Profile, context_length: int, *, drafter: Drafter | None = None) -> Geometry:
    """Capacities of a bundle for up to `context_length` tokens, one with a `drafter` or without."""
    planes = page_planes(spec, profile)
    max_rows = max(MAX_OUTPUTS, *(chunk for chunk in entries.CHUNKS if chunk <= max(64, context_length)))
    slots = drafter.block.block_size - 1 if drafter and drafter.block else 0
    held = drafter_geometry(spec, drafter, lambda of: page_planes(of, profile), max_rows, context_length)
    if held and not held.block:
        held = replace(held, chain=LENGTH)  # launched in one go
    return Geometry(
        context_length=context_length,
        vocab_size=spec.vocab_size,
        max_rows=max_rows,
        max_outputs=min(max_rows, max(MAX_OUTPUTS, MAX_LANES * slots)),  # a block of every lane in one pass
        max_lanes=MAX_LANES,
        page_tokens=PAGE_TOKENS,
        page_bytes=layer_types(spec).count(FULL_ATTENTION) * PAGE_TOKENS * sum(heads * size for heads, size in planes),
        kv_planes=planes,
        drafter=held,
        draws=spec.vocab_size <= 1 << ID_BITS,
        **recurrent_facts(spec, profile.matrix),
    )


@dataclass(frozen=True, slots=True)
class CudaComposer(Composer):
    """Of programs whose convolutions keep raw inputs in the type that products take theirs in."""

    @property
    def raw(self) -> Format:
        return self.profile.matrix
