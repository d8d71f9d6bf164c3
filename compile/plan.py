"""What a compile will do, settled before anything is written: spec, device, geometry, entries, configuration.

Reads the checkpoint's header and config, no weights.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields
from typing import Any

from tandem.artifacts.geometry import GeometryRecord
from tandem.artifacts.io import Geometry, IoLayout
from tandem.artifacts.program import VERSION
from tandem.artifacts.resolved import Resolved
from tandem.compile.checkpoints.base import Checkpoint
from tandem.compile.cpu.composer import geometry as bundle_geometry
from tandem.compile.cpu.panels import stored_bytes
from tandem.compile.models.families import resolve
from tandem.compile.models.spec import LlamaSpec
from tandem.compile.models.weights import weight_sources
from tandem.compile.profile import Profile, find_profile
from tandem.compile.sources import source_digests
from tandem.compile.tools import environment, tool_versions
from tandem.device import ISA_FLAGS, Machine, this_machine
from tandem.errors import CompileError, UsageError
from tandem.kernels import build
from tandem.keys import Kind

MAX_ROWS = 128
"""Rows of the largest prefill chunk: scratch for them stays in the second-level cache."""
MAX_LANES = 8
MIN_CONTEXT, MAX_PLANNED_CONTEXT = 64, 131_072
"""The shortest context a bundle is made for, and the longest unless asked for more."""


@dataclass(frozen=True, slots=True)
class Plan:
    """Everything that decides a bundle's bytes; `resolved` is what its `build_id` hashes."""

    name: str
    spec: LlamaSpec
    profile: Profile
    isa: str
    geometry: Geometry
    entries: tuple[Kind, ...]
    weight_bytes: int
    resolved: Resolved

    @property
    def device(self) -> str:
        return f"cpu-{self.isa}"

    def summary(self) -> dict[str, Any]:
        """What `--dry-run` prints."""
        g = self.geometry
        return {
            "name": self.name,
            "family": self.spec.family,
            "profile": self.profile.name,
            "device": self.device,
            "context_length": g.context_length,
            "lanes": g.max_lanes,
            "entries": [kind.value for kind in self.entries],
            "weight_bytes": self.weight_bytes,
            "kv_bytes_per_token": g.page_bytes // g.page_tokens,
            "io_bytes": IoLayout(g).nbytes,
        }


def make_plan(
    checkpoint: Checkpoint, digest: str, *, name: str, profile: str, device: str, context_length: int | None
) -> Plan:
    """Settles a plan. `digest` is the checkpoint's, `device` is `auto`, `cpu` or such as `cpu-x86-64-v3`.

    Raises CompileError for what the checkpoint asks and no model here offers, UsageError for impossible wishes.
    """
    spec, chosen, isa = resolve(checkpoint.config), find_profile(profile), _isa(device, this_machine())
    context = _context(spec, context_length)
    geometry = bundle_geometry(spec, chosen, context, max_rows=min(MAX_ROWS, context), max_lanes=MAX_LANES)
    shapes = {name: source.shape for name, source in weight_sources(spec).items()}
    nbytes = sum(stored_bytes(shape, chosen.format(name, shape)) for name, shape in shapes.items())
    resolved = Resolved(
        checkpoint=digest,
        spec=asdict(spec),
        profile={field.name: _plain(getattr(chosen, field.name)) for field in fields(chosen)},
        device=f"cpu-{isa}",
        geometry=GeometryRecord.of(geometry),
        entries=tuple(Kind),
        flags=(*build.FLAGS, *build.isa_flags(isa)),
        program_version=VERSION,
        sources=source_digests(),
        tools=tool_versions(),
        environment=environment(),
    )
    return Plan(name, spec, chosen, isa, geometry, tuple(Kind), nbytes, resolved)


def _plain(value: object) -> object:
    """A field of a profile as JSON holds it; a dtype by its name."""
    return value if isinstance(value, str | bool | int | float) else str(value)


def _context(spec: LlamaSpec, wanted: int | None) -> int:
    most = spec.max_position_embeddings
    if wanted is not None and not MIN_CONTEXT <= wanted <= most:
        raise UsageError(f"--max-seq-len {wanted}: for this model it may be {MIN_CONTEXT} to {most} tokens")
    if most < MIN_CONTEXT:
        raise CompileError(f"max_position_embeddings = {most}; a bundle holds at least {MIN_CONTEXT} tokens")
    return wanted or min(most, MAX_PLANNED_CONTEXT)


def _isa(device: str, machine: Machine) -> str:
    """The ISA level to compile for: this machine's, or a lower one by name."""
    isa = machine.isa_level if device in ("auto", "cpu") else device.removeprefix("cpu-")
    if not device.startswith(("cpu", "auto")) or isa not in ISA_FLAGS:
        raise UsageError(f"--device {device}: this build knows cpu and {', '.join(f'cpu-{i}' for i in ISA_FLAGS)}")
    if missing := machine.missing_flags(ISA_FLAGS[isa]):
        raise UsageError(
            f"--device {device}: this CPU lacks {', '.join(missing)}, so the entries cannot be proved here; "
            f"use --device {machine.device}"
        )
    return isa
