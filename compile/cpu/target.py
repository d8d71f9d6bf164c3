"""The CPU as a target: panels, the C++ library for one ISA level, and a program for each kind."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tandem.artifacts import layout as files
from tandem.artifacts.io import Geometry
from tandem.artifacts.manifest import Host, PriceFacts, Validity
from tandem.artifacts.program import encode
from tandem.artifacts.weights import MappedWeights
from tandem.compile.cpu import panels
from tandem.compile.cpu.composer import CpuComposer, geometry
from tandem.compile.drafters import Drafter
from tandem.compile.examine import Staged
from tandem.compile.gate.measure import measure_quality, write_reference
from tandem.compile.models.spec import LlamaSpec
from tandem.compile.profile import Profile
from tandem.compile.store import Layout
from tandem.compile.target import Staging, entry, stage_weights
from tandem.compile.tools import compiler_versions
from tandem.device import ISA_FLAGS, this_machine
from tandem.errors import UsageError
from tandem.kernels import build
from tandem.keys import Kind

if TYPE_CHECKING:
    from tandem.artifacts.writer import BundleWriter
    from tandem.compile.checkpoints.base import Checkpoint
    from tandem.compile.plan import Plan
    from tandem.compile.progress import Progress

MAX_ROWS = 128
"""Rows of the largest prefill chunk: scratch for them stays in the second-level cache."""
MAX_LANES = 8


@dataclass(frozen=True, slots=True)
class CpuTarget:
    """This machine's CPU, used up to the ISA level `isa`."""

    isa: str

    @classmethod
    def find(cls, device: str) -> CpuTarget:
        """The target `cpu`, or one such as `cpu-x86-64-v3`. UsageError for one that cannot be proved here."""
        machine = this_machine()
        isa = machine.isa_level if device == "cpu" else device.removeprefix("cpu-")
        if not device.startswith("cpu") or isa not in ISA_FLAGS:
            known = ", ".join(f"cpu-{isa}" for isa in ISA_FLAGS)
            raise UsageError(f"--device {device}: this build knows cpu, {known} and cuda")
        if missing := machine.missing_flags(ISA_FLAGS[isa]):
            raise UsageError(
                f"--device {device}: this CPU lacks {', '.join(missing)}, so the entries cannot be proved here; "
                f"use --device {machine.device}"
            )
        return cls(isa)

    @property
    def device(self) -> str:
        return f"cpu-{self.isa}"

    @property
    def product(self) -> str:
        machine = this_machine()
        return f"{machine.product}, {machine.cores} cores"

    @property
    def layout(self) -> Layout:
        return panels

    @property
    def flags(self) -> tuple[str, ...]:
        return (*build.FLAGS, *build.isa_flags(self.isa))

    @property
    def foreign(self) -> tuple[str, ...]:
        return ("compile/cuda/*", "kernels/cuda/*", "runtime/executor/cuda/*", "runtime/gpu.py")

    def require(self, spec: LlamaSpec, profile: Profile) -> None:
        """Every model and profile has kernels here."""

    @property
    def drafters(self) -> tuple[str, ...]:
        return "mtp", "dflash2"

    def geometry(
        self, spec: LlamaSpec, profile: Profile, context_length: int, *, drafter: Drafter | None = None
    ) -> Geometry:
        max_rows = min(MAX_ROWS, context_length)
        return geometry(spec, profile, context_length, max_rows=max_rows, max_lanes=MAX_LANES, drafter=drafter)

    def num_programs(self, geometry: Geometry) -> int:
        return len(geometry.kinds)

    def tools(self) -> dict[str, str]:
        return compiler_versions()

    def host(self) -> Host:
        machine = this_machine()
        return Host(
            validity=Validity(
                arch=machine.arch, isa_level=self.isa, flags=ISA_FLAGS[self.isa], abi=machine.abi, cuda=None
            ),
            price=PriceFacts(product=machine.product, cores=machine.cores, memory=machine.memory, gpu=None),
        )

    def stage(
        self, writer: BundleWriter, plan: Plan, checkpoint: Checkpoint, scratch: Path, progress: Progress
    ) -> Staging:
        """The compilers of the library run while weights are written."""
        weights, reference = writer.path(files.WEIGHTS), None
        with build.library_build(self.isa, scratch / "library.so") as finish:
            progress.stage(f"weights, and kernels for {self.isa}", 25)
            stage_weights(plan, checkpoint, weights, progress)
            if plan.profile.low_bit:
                reference = write_reference(plan, checkpoint, scratch)
            sha256 = writer.add_kernel(finish().read_bytes())
        library = writer.path(files.kernel_file(sha256))
        progress.stage("programs", 5)
        programs = _add_programs(writer, plan, weights, library)
        entries = tuple(entry(kind, files.program_file(kind.value)) for kind in plan.geometry.kinds)
        staged = Staged(plan.geometry, weights, library, programs, this_machine().cores)
        if reference is None:
            return Staging(staged, entries)
        progress.stage("quality", 25)

        def advance(step: str) -> None:
            progress.advance(0.05, step)  # there are about 500

        return Staging(staged, entries, measure_quality(plan, checkpoint, staged, reference, advance))


def _add_programs(writer: BundleWriter, plan: Plan, weights: Path, library: Path) -> dict[Kind, Path]:
    signatures = build.read_signatures(library)
    composer = CpuComposer(
        plan.spec,
        plan.profile,
        plan.geometry,
        MappedWeights(weights),
        signatures,
        library.stem,
        block=plan.drafter.block if plan.drafter else None,
    )
    paths = {}
    for kind in plan.geometry.kinds:
        paths[kind] = writer.path(files.program_file(kind.value))
        paths[kind].write_bytes(encode(composer.program(kind)))
    return paths
