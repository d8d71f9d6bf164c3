"""Programs of the C++ library: one per kind, for any number of rows and any context.

Knows nothing of operators; their rules stand in `rules`.
"""

from __future__ import annotations

from dataclasses import dataclass

from tandem.artifacts.io import Geometry, IoLayout
from tandem.artifacts.program import Program
from tandem.compile.assembly import Assembly
from tandem.compile.compose import PAGE_TOKENS, Composer, block_geometry, draft_geometry, recurrent_facts
from tandem.compile.cpu.fuse import fuse
from tandem.compile.cpu.rules import RULES
from tandem.compile.drafters import Drafter
from tandem.compile.lowering import Lowering
from tandem.compile.models.dflash2_config import Dflash2Spec
from tandem.compile.models.spec import FULL_ATTENTION, LlamaSpec, layer_types
from tandem.compile.profile import Profile
from tandem.kernels.signature import Signature
from tandem.keys import DRAFTER_KINDS, Kind

LANES = 16
"""Heads are padded to whole vectors in the value pages."""


def page_planes(spec: LlamaSpec | Dflash2Spec, profile: Profile) -> tuple[tuple[int, int], tuple[int, int]]:
    """One layer's K and V in a page, as (groups, bytes): see `Geometry.kv_planes`."""
    size = profile.cache.itemsize
    padded = -(-spec.head_dim // LANES) * LANES
    return (spec.num_key_value_heads * spec.head_dim, size), (spec.num_key_value_heads, padded * size)


def geometry(
    spec: LlamaSpec,
    profile: Profile,
    context_length: int,
    *,
    max_rows: int,
    max_lanes: int,
    drafter: Drafter | None = None,
) -> Geometry:
    """Capacities of a bundle for up to `context_length` tokens, one with a `drafter` or without."""
    planes, drafts = page_planes(spec, profile), None
    if drafter is not None and drafter.block is not None:
        drafts = block_geometry(drafter.block, page_planes(drafter.block, profile), max_rows, context_length)
    elif drafter is not None:
        drafts = draft_geometry(spec, planes, max_rows)
    layer_bytes = PAGE_TOKENS * sum(groups * size for groups, size in planes)
    return Geometry(
        context_length=context_length,
        vocab_size=spec.vocab_size,
        max_rows=max_rows,
        max_outputs=32,
        max_lanes=max_lanes,
        page_tokens=PAGE_TOKENS,
        page_bytes=layer_types(spec).count(FULL_ATTENTION) * layer_bytes,
        kv_planes=planes,
        drafter=drafts,
        **recurrent_facts(spec),
    )


@dataclass(frozen=True, slots=True)
class CpuComposer(Composer):
    """`binary` is the kernel library's sha256, `signatures` are its kernels'."""

    signatures: dict[str, Signature]
    binary: str

    def program(self, kind: Kind) -> Program:
        """Traces, lowers and lays out the program of `kind`."""
        io = IoLayout(self.geometry)
        assembly = Assembly(self.signatures)
        most = {"rows": self.geometry.max_rows, "outputs": self.geometry.max_outputs, "moves": self.geometry.max_rows}
        lowering = Lowering(assembly, io, RULES, most, "CPU")
        if kind is Kind.COMMIT:
            self.lower_commit(lowering, self.geometry.num_layers)
        elif kind in DRAFTER_KINDS:
            self.lower_draft(lowering, kind)
            assembly.rewrite(fuse)
        else:
            self.lower_pass(lowering, kind)
            assembly.rewrite(fuse)
        return assembly.program(self.binary, self.region_bytes)
