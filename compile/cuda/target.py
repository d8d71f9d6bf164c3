"""A GPU as a target: rows of bf16, cubins of Triton kernels, and a program for each row bucket and context class."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tandem.artifacts import layout as files
from tandem.artifacts.io import Geometry
from tandem.artifacts.manifest import CudaPriceFacts, CudaValidity, EntryRecord, Host, PriceFacts, Validity
from tandem.artifacts.program import encode
from tandem.artifacts.weights import MappedWeights
from tandem.compile.compose import Composer
from tandem.compile.cuda import entries, rows
from tandem.compile.cuda.composer import CudaComposer, geometry
from tandem.compile.drafters import Drafter
from tandem.compile.examine import StagedCuda, StagedProgram
from tandem.compile.models.spec import LlamaSpec
from tandem.compile.profile import Profile
from tandem.compile.store import Layout
from tandem.compile.target import Staging, entry, stage_weights
from tandem.device import this_machine
from tandem.errors import UsageError
from tandem.gpu import Gpu, device_name, gpus

if TYPE_CHECKING:
    from tandem.artifacts.writer import BundleWriter
    from tandem.compile.checkpoints.base import Checkpoint
    from tandem.compile.plan import Plan
    from tandem.compile.progress import Progress

CAPABILITIES = {"9.0": 90}
"""Compute capabilities that kernels have been proved on, as Triton numbers them."""


@dataclass(frozen=True, slots=True)
class CudaTarget:
    """The first GPU that this process sees."""

    gpu: Gpu

    @classmethod
    def find(cls, device: str) -> CudaTarget:
        """The target `cuda`, or one such as `cuda-sm90`. UsageError for one that cannot be proved here."""
        found = gpus()
        if not found:
            raise UsageError(
                f"--device {device}: no GPU is in sight here, so entries cannot be proved; compile on a machine with "
                "an NVIDIA GPU and driver, or use --device cpu"
            )
        gpu = found[0]
        if gpu.capability not in CAPABILITIES:
            known = ", ".join(CAPABILITIES)
            raise UsageError(
                f"--device {device}: {gpu.name} has compute capability {gpu.capability}, this build knows {known}; "
                "use another GPU (CUDA_VISIBLE_DEVICES) or --device cpu"
            )
        if device not in ("cuda", device_name(gpu)):
            raise UsageError(f"--device {device}: the GPU here is an {gpu.name}; use --device {device_name(gpu)}")
        return cls(gpu)

    @classmethod
    def suitable(cls, spec: LlamaSpec, profile: Profile) -> CudaTarget | None:
        """The target `auto` stands for, or None where there is no GPU, or none with kernels of model and `profile`."""
        found = gpus()
        served = bool(found) and found[0].capability in CAPABILITIES and not profile.low_bit
        return cls(found[0]) if served else None

    @property
    def device(self) -> str:
        return device_name(self.gpu)

    @property
    def product(self) -> str:
        return self.gpu.product

    @property
    def layout(self) -> Layout:
        return rows

    @property
    def flags(self) -> tuple[str, ...]:
        from tandem.kernels.cuda.build import FLAGS

        return FLAGS

    @property
    def foreign(self) -> tuple[str, ...]:
        return ("compile/cpu/*", "kernels/cpu/*")

    def require(self, spec: LlamaSpec, profile: Profile) -> None:
        for form in (profile.matrix, profile.table):
            rows.require(form)

    @property
    def drafters(self) -> tuple[str, ...]:
        return ()

    def geometry(
        self, spec: LlamaSpec, profile: Profile, context_length: int, *, drafter: Drafter | None = None
    ) -> Geometry:
        assert drafter is None
        return geometry(spec, profile, context_length)

    def num_programs(self, geometry: Geometry) -> int:
        return sum(1 for _ in entries.shapes(geometry))

    def tools(self) -> dict[str, str]:
        from tandem.compile.tools import compiler_versions, triton_versions

        return triton_versions() | compiler_versions()

    def host(self) -> Host:
        machine, gpu = this_machine(), self.gpu
        return Host(
            validity=Validity(
                arch=machine.arch,
                isa_level="generic",
                flags=(),
                abi=machine.abi,
                # Cubins run on every driver of their major version (CUDA Compatibility, "minor version").
                cuda=CudaValidity(capability=gpu.capability, driver=f"{gpu.driver.partition('.')[0]}.0"),
            ),
            price=PriceFacts(
                product=machine.product,
                cores=machine.cores,
                memory=machine.memory,
                gpu=CudaPriceFacts(product=gpu.product, multiprocessors=gpu.multiprocessors, memory=gpu.memory),
            ),
        )

    def stage(
        self, writer: BundleWriter, plan: Plan, checkpoint: Checkpoint, scratch: Path, progress: Progress
    ) -> Staging:
        from tandem.kernels.cuda.copier import build_copier

        weights = writer.path(files.WEIGHTS)
        copier = writer.add_kernel(build_copier(scratch / "copier.so").read_bytes())
        progress.stage("weights", 20)
        stage_weights(plan, checkpoint, weights, progress)
        composer = CudaComposer(plan.spec, plan.profile, plan.geometry, MappedWeights(weights))
        records = tuple(self._programs(writer, composer, progress))
        staged = StagedCuda(
            plan.geometry,
            weights,
            weights.parent / files.KERNELS,
            writer.path(files.kernel_file(copier)),
            tuple(StagedProgram(e.kind, e.context_class, e.rows, writer.path(e.program)) for e in records),
            self.gpu.index,
        )
        return Staging(staged, records)

    def _programs(self, writer: BundleWriter, composer: Composer, progress: Progress) -> Iterator[EntryRecord]:
        """Lowers all programs, compiles their kernels side by side, holds them against captures and writes both."""
        from tandem.compile.cuda.check import check_programs
        from tandem.compile.cuda.glue_kernel import compile_kernels
        from tandem.compile.cuda.programs import encode_program, lower
        from tandem.kernels.cuda.build import compile_variants

        progress.stage("programs", 5)
        lowered = [lower(composer, shape) for shape in entries.shapes(composer.geometry)]
        wanted = sorted({variant for program in lowered for variant in program.variants()}, key=repr)
        runs = list(dict.fromkeys(kernel for program in lowered for kernel in program.glue.values()))
        count = len(wanted) + len(runs)
        progress.stage(f"{count} kernels", 15)

        def advance() -> None:
            progress.advance(15 / count)

        cubins = compile_variants(wanted, CAPABILITIES[self.gpu.capability], advance)
        glue = compile_kernels(runs, self.gpu.index, advance)
        made = [(program, encode_program(program, cubins, writer.add_cubin, glue)) for program in lowered]
        check_programs(made, self.gpu.index)
        for low, program in made:
            name = files.program_file(low.shape.name)
            writer.add(name, encode(program))
            for kind in low.shape.kinds:
                yield entry(kind, name, low.shape.context_class, low.shape.rows)
