"""What a device must offer for a bundle to be made for it. `cpu` and `cuda` each have one.

Knows no device.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from tandem.artifacts.io import Geometry
from tandem.artifacts.manifest import EntryRecord, Host
from tandem.artifacts.quality import Quality
from tandem.compile.drafters import Drafter
from tandem.compile.examine import Staged, StagedCuda
from tandem.compile.models.spec import LlamaSpec
from tandem.compile.profile import Profile
from tandem.compile.store import Layout, write_weights
from tandem.keys import Kind

if TYPE_CHECKING:
    from tandem.artifacts.writer import BundleWriter
    from tandem.compile.checkpoints.base import Checkpoint
    from tandem.compile.plan import Plan
    from tandem.compile.progress import Progress


@dataclass(frozen=True, slots=True)
class Staging:
    """A bundle's files before the seal: what the proving process opens, its entries, and what a low-bit profile's bits
    cost."""

    staged: Staged | StagedCuda
    entries: tuple[EntryRecord, ...]
    quality: Quality | None = None


class Target(Protocol):
    """A kind of device: how weights lie, what memory a model takes, and how programs come about."""

    @property
    def device(self) -> str:
        """Its name in keys and manifests, such as `cpu-x86-64-v3` or `cuda-sm90`."""
        ...

    @property
    def product(self) -> str:
        """The product that prices are measured on."""
        ...

    @property
    def layout(self) -> Layout: ...

    @property
    def flags(self) -> tuple[str, ...]:
        """What its compilers are told."""
        ...

    @property
    def foreign(self) -> tuple[str, ...]:
        """Patterns of sources that only other devices' builds come to read, as `tandem.compile.sources` names files."""
        ...

    def require(self, spec: LlamaSpec, profile: Profile) -> None:
        """UsageError for a model or a profile that it has no kernels for."""
        ...

    @property
    def drafters(self) -> tuple[str, ...]:
        """Kinds of drafters that it has programs for, as `DrafterRecord` calls them."""
        ...

    def geometry(
        self, spec: LlamaSpec, profile: Profile, context_length: int, *, drafter: Drafter | None = None
    ) -> Geometry: ...

    def num_programs(self, geometry: Geometry) -> int:
        """How many programs a bundle of these capacities holds."""
        ...

    def tools(self) -> dict[str, str]:
        """Versions of the compilers it uses, by name."""
        ...

    def host(self) -> Host: ...

    def stage(
        self, writer: BundleWriter, plan: Plan, checkpoint: Checkpoint, scratch: Path, progress: Progress
    ) -> Staging:
        """Writes weights, kernels and programs, and measures what a low-bit profile costs, however much that is.

        What nobody reads after this goes to `scratch`.
        """
        ...


def stage_weights(plan: Plan, checkpoint: Checkpoint, path: Path, progress: Progress) -> None:
    """Writes `path` as the plan's target wants weights to lie: 20 shares of `progress`."""
    write_weights(
        plan.spec,
        plan.profile,
        checkpoint,
        path,
        layout=plan.target.layout,
        context_length=plan.geometry.context_length,
        drafter=plan.drafter,
        advance=lambda nbytes: progress.advance(20 * nbytes / plan.weight_bytes),
    )


def entry(kind: Kind, program: str, context_class: int = 0, rows: int = 0) -> EntryRecord:
    """An entry's record; the writer fills in the digest."""
    return EntryRecord(kind=kind, context_class=context_class, rows=rows, part="whole", program=program, sha256="")
