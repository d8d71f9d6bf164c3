"""Passes for a GPU, and the memory that they are composed for.

Knows nothing of operators; their rules stand in `rules`.
"""

from __future__ import annotations

from dataclasses import dataclass

from tandem.artifacts.io import Geometry
from tandem.compile.compose import PAGE_TOKENS, Composer, draft_geometry, recurrent_facts
from tandem.compile.cuda import entries
from tandem.compile.models.spec import FULL_ATTENTION, LlamaSpec, layer_types
from tandem.compile.profile import Format, Profile
from tandem.wish import ID_BITS

MAX_LANES = 8
MAX_OUTPUTS = 32


def geometry(spec: LlamaSpec, profile: Profile, context_length: int, *, drafter: bool = False) -> Geometry:
    """Capacities of a bundle for up to `context_length` tokens, one with its checkpoint's `drafter` or without."""
    plane = spec.num_key_value_heads, spec.head_dim * profile.cache.itemsize
    max_rows = max(MAX_OUTPUTS, *(chunk for chunk in entries.CHUNKS if chunk <= max(64, context_length)))
    return Geometry(
        context_length=context_length,
        vocab_size=spec.vocab_size,
        max_rows=max_rows,
        max_outputs=MAX_OUTPUTS,
        max_lanes=MAX_LANES,
        page_tokens=PAGE_TOKENS,
        page_bytes=layer_types(spec).count(FULL_ATTENTION) * 2 * PAGE_TOKENS * plane[0] * plane[1],
        kv_planes=(plane, plane),
        drafter=draft_geometry(spec, (plane, plane), max_rows) if drafter else None,
        draws=spec.vocab_size <= 1 << ID_BITS,
        **recurrent_facts(spec, profile.matrix),
    )


@dataclass(frozen=True, slots=True)
class CudaComposer(Composer):
    """Of programs whose convolutions keep raw inputs in the type that products take theirs in."""

    @property
    def raw(self) -> Format:
        return self.profile.matrix
