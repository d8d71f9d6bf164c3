"""What a compile will do, settled before anything is written: spec, device, geometry, entries, configuration.

Reads the checkpoint's header and config, no weights but those of a tied head that is stored all the same.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields
from typing import Any

from tandem.artifacts.geometry import GeometryRecord
from tandem.artifacts.io import Geometry, IoLayout
from tandem.artifacts.program import VERSION
from tandem.artifacts.resolved import Resolved
from tandem.compile.checkpoints.base import Checkpoint
from tandem.compile.checkpoints.drafter import DrafterCheckpoint
from tandem.compile.drafters import Dflash2, Drafter, Mtp
from tandem.compile.models.families import resolve
from tandem.compile.models.spec import LlamaSpec
from tandem.compile.models.weights import has_mtp, require_tensors
from tandem.compile.profile import Profile, find_profile
from tandem.compile.sources import source_digests
from tandem.compile.store import weight_bytes
from tandem.compile.target import Target
from tandem.compile.tools import environment, tool_versions
from tandem.errors import CheckpointError, CompileError, UsageError

MIN_CONTEXT, MAX_PLANNED_CONTEXT = 64, 131_072
"""The shortest context a bundle is made for, and the longest unless asked for more."""


@dataclass(frozen=True, slots=True)
class Plan:
    """Everything that decides a bundle's bytes; `resolved` is what its `build_id` hashes."""

    name: str
    spec: LlamaSpec
    profile: Profile
    target: Target
    geometry: Geometry
    weight_bytes: int
    resolved: Resolved
    drafter: Drafter | None
    undrafted: str = ""
    """Why a layer that drafts is left out, for whoever did not ask for that."""

    @property
    def device(self) -> str:
        return self.target.device

    @property
    def drafter_weight_bytes(self) -> int:
        """Bytes of the drafter's own parameters, which are among `weight_bytes`."""
        return self.weight_bytes - weight_bytes(self.spec, self.profile, self.target.layout)

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
            "entries": [kind.value for kind in g.kinds],
            "programs": self.target.num_programs(g),
            "weight_bytes": self.weight_bytes,
            "kv_bytes_per_token": g.page_bytes // g.page_tokens,
            "state_bytes_per_lane": g.state_bytes,
            "io_bytes": IoLayout(g).nbytes,
        } | self._drafter_summary()

    def _drafter_summary(self) -> dict[str, Any]:
        held, record, page_tokens = self.geometry.drafter, self.resolved.drafter, self.geometry.page_tokens
        if record is None or held is None:
            return {"drafter": "none"}
        guesses = f"blocks of {held.block.rows}" if held.block else f"chains of {record.length}"
        return {
            "drafter": f"{record.kind}, {guesses}",
            "drafter_weight_bytes": self.drafter_weight_bytes,
            "drafter_kv_bytes_per_token": held.page_bytes // page_tokens,
            "tap_bytes": held.tap_bytes,
        }


def make_plan(
    checkpoint: Checkpoint,
    digest: str,
    *,
    name: str,
    profile: str,
    device: str,
    context_length: int | None,
    drafter: DrafterCheckpoint | str = "auto",
) -> Plan:
    """Settles a plan. `digest` is the checkpoint's; `device` is `auto`, `cpu`, `cuda`, or such as `cpu-x86-64-v3`.

    `drafter` is a block drafter's checkpoint, `none`, or `auto`: a layer of the checkpoint that drafts comes along,
    where it has one and the device has programs for it.

    Raises CompileError for what a checkpoint asks and no model here offers, UsageError for impossible wishes,
    CheckpointError for tensors that are missing, misshapen or unknown, for a drafter of another model, and for ends of
    text that no text can have.
    """
    spec, chosen = resolve(checkpoint.config), find_profile(profile)
    target = find_target(device, spec, chosen)
    target.require(spec, chosen)
    context = _context(spec, context_length)
    drafts, undrafted = _drafter(drafter, spec, checkpoint, digest, target)
    geometry = target.geometry(spec, chosen, context, drafter=drafts)
    _require_stops(spec, checkpoint)
    require_tensors(spec, checkpoint)
    resolved = Resolved(
        checkpoint=digest,
        spec=asdict(spec),
        profile={field.name: _plain(getattr(chosen, field.name)) for field in fields(chosen)},
        device=target.device,
        geometry=GeometryRecord.of(geometry),
        entries=geometry.kinds,
        drafter=drafts.record(spec, digest) if drafts else None,
        flags=target.flags,
        program_version=VERSION,
        sources=source_digests(target.foreign),
        tools=tool_versions() | target.tools(),
        environment=environment(),
    )
    nbytes = weight_bytes(spec, chosen, target.layout, drafter=drafts)
    return Plan(name, spec, chosen, target, geometry, nbytes, resolved, drafts, undrafted)


def _drafter(
    wanted: DrafterCheckpoint | str,
    spec: LlamaSpec,
    checkpoint: Checkpoint,
    digest: str,
    target: Target,
) -> tuple[Drafter | None, str]:
    """What drafts along, or why it does not although nobody said that it should not."""
    if isinstance(wanted, DrafterCheckpoint):
        drafter = Dflash2.open(wanted, spec, digest)
        if drafter.KIND not in target.drafters:
            raise UsageError(
                f"--drafter {wanted.origin}: {target.device} has no programs yet for block drafters (DFlash2); use "
                "--device cpu, or leave it out"
            )
        return drafter, ""
    if wanted == "none" or not has_mtp(spec, checkpoint):
        return None, ""
    if Mtp.KIND not in target.drafters:
        return (
            None,
            f"no drafter: {target.device} has no programs yet for the layer of this checkpoint that drafts (MTP)",
        )
    return Mtp(), ""


def find_target(device: str, spec: LlamaSpec, profile: Profile) -> Target:
    """The device to compile for. UsageError for one that cannot be proved here.

    `auto` is the first GPU in sight where there are kernels of model and profile for it, else this machine's CPU.
    """
    from tandem.compile.cpu.target import CpuTarget
    from tandem.compile.cuda.target import CudaTarget

    if device == "auto":
        return CudaTarget.suitable(spec, profile) or CpuTarget.find("cpu")
    kind = device.partition("-")[0]
    return CudaTarget.find(device) if kind == "cuda" else CpuTarget.find(device)


def _require_stops(spec: LlamaSpec, checkpoint: Checkpoint) -> None:
    """CheckpointError if a text is to end at an id that the model never gives."""
    if stray := [i for i in checkpoint.stop_ids if not 0 <= i < spec.vocab_size]:
        raise CheckpointError(
            f"{checkpoint.origin}: texts end at id {stray[0]}, which is not in the vocabulary of {spec.vocab_size}: "
            "correct eos_token_id in config.json and generation_config.json, or fetch the tokenizer of this checkpoint"
        )


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
