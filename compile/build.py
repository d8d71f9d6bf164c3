"""The steps from a plan to a bundle, in order: weights and kernels, programs, quality, proof and prices, seal.

Each step is a function elsewhere; this page is the table of contents.
"""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from tandem.artifacts import layout
from tandem.artifacts.geometry import GeometryRecord
from tandem.artifacts.manifest import (
    Draft,
    EntryRecord,
    Host,
    Manifest,
    PriceFacts,
    ProofSummary,
    TokenizerFacts,
    Validity,
)
from tandem.artifacts.program import encode
from tandem.artifacts.quality import Quality
from tandem.artifacts.weights import MappedWeights
from tandem.artifacts.writer import BundleWriter
from tandem.compile import report
from tandem.compile.checkpoints.base import Checkpoint
from tandem.compile.cpu.composer import CpuComposer
from tandem.compile.examine import Staged, examine
from tandem.compile.gate import limits
from tandem.compile.gate.measure import measure_quality, write_reference
from tandem.compile.plan import Plan
from tandem.compile.progress import Progress
from tandem.compile.store import write_weights
from tandem.compile.tokenizer import quick_text
from tandem.device import ISA_FLAGS, this_machine
from tandem.kernels.build import library_build, read_signatures
from tandem.keys import Kind


def build_bundle(
    plan: Plan, checkpoint: Checkpoint, target: Path, *, replace: bool, accept_quality: bool = False, progress: Progress
) -> Manifest:
    """Builds, measures, proves, prices and publishes the bundle of `plan` at `target`; nothing is left on failure.

    QualityError for a low-bit profile that costs more than its limits, unless `accept_quality` seals it all the same.
    """
    with BundleWriter(target, replace=replace) as writer:
        writer.add(layout.TOKENIZER, quick_text(checkpoint.tokenizer_json, plan.name).encode())
        with TemporaryDirectory(dir=writer.path(layout.WEIGHTS).parent) as scratch:
            staged, reference = _stage(writer, plan, checkpoint, Path(scratch), progress)
            quality = None
            if reference is not None:
                progress.stage("quality", 25)
                quality = measure_quality(
                    plan, checkpoint, staged, reference, lambda step: progress.advance(0.05, step)
                )  # there are about 500
                if not accept_quality:
                    limits.require(quality, plan.profile.name)

        progress.stage("proof and prices", 40 if quality else 65)
        found = examine(staged, lambda step: progress.advance(0.5, step))  # there are about 100
        prices = {**found["prices"], "measured": _measured()}
        writer.add(layout.PRICES, _json(prices))
        writer.add(layout.PROOF, _json(found["proof"]))
        writer.add(layout.ORACLE, _json(found["oracle"]))
        writer.add(layout.REPORT, report.page(plan.summary(), prices, found["proof"], quality).encode())
        writer.add(layout.STAIRCASE, report.staircase(prices).encode())

        progress.stage("seal", 5)
        return writer.publish(_draft(plan, checkpoint, found["proof"], quality))


def _stage(
    writer: BundleWriter, plan: Plan, checkpoint: Checkpoint, scratch: Path, progress: Progress
) -> tuple[Staged, Path | None]:
    """Weights, library and programs in the bundle, and where the reference's weights lie if the profile is low-bit.

    The compilers of the library run while weights are written. What they make lies in `scratch`, as the reference does.
    """
    weights = writer.path(layout.WEIGHTS)
    reference = None
    with library_build(plan.isa, scratch / "library.so") as finish:
        progress.stage(f"weights, and kernels for {plan.isa}", 25)
        write_weights(
            plan.spec,
            plan.profile,
            checkpoint,
            weights,
            context_length=plan.geometry.context_length,
            advance=lambda nbytes: progress.advance(20 * nbytes / plan.weight_bytes),
        )
        if plan.profile.low_bit:
            reference = write_reference(plan, checkpoint, scratch)
        sha256 = writer.add_kernel(finish().read_bytes())
    library = writer.path(layout.kernel_file(sha256))

    progress.stage("programs", 5)
    programs = _add_programs(writer, plan, weights, library)
    return Staged(plan.geometry, weights, library, programs, this_machine().cores), reference


def _add_programs(writer: BundleWriter, plan: Plan, weights: Path, library: Path) -> dict[Kind, Path]:
    composer = CpuComposer(
        plan.spec, plan.profile, plan.geometry, MappedWeights(weights), read_signatures(library), library.stem
    )
    paths = {}
    for kind in plan.entries:
        paths[kind] = writer.path(layout.program_file(kind.value))
        paths[kind].write_bytes(encode(composer.program(kind)))
    return paths


def _draft(plan: Plan, checkpoint: Checkpoint, proof: dict[str, Any], quality: Quality | None) -> Draft:
    machine = this_machine()
    return Draft(
        name=plan.name,
        family=plan.spec.family,
        profile=plan.profile.name,
        device=plan.device,
        arithmetic="exact",
        geometry=GeometryRecord.of(plan.geometry),
        entries=tuple(
            EntryRecord(
                kind=kind, context_class=0, rows=0, part="whole", program=layout.program_file(kind.value), sha256=""
            )
            for kind in plan.entries
        ),
        tokenizer=TokenizerFacts(
            chat_template=checkpoint.chat_template,
            bos_token=checkpoint.bos_token,
            eos_token=checkpoint.eos_token,
            stop_ids=checkpoint.stop_ids,
        ),
        host=Host(
            validity=Validity(arch=machine.arch, isa_level=plan.isa, flags=ISA_FLAGS[plan.isa], abi=machine.abi),
            price=PriceFacts(product=machine.product, cores=machine.cores, memory=machine.memory),
        ),
        proof=ProofSummary(cases=proof["cases"], differing=proof["differing"]),
        quality=quality,
        resolved=plan.resolved,
    )


def _measured() -> str:
    machine = this_machine()
    return f"{datetime.now(UTC):%Y-%m-%d} on {machine.product}, {machine.cores} cores, least of several"


def _json(value: dict[str, Any]) -> bytes:
    return json.dumps(value, indent=1).encode()
