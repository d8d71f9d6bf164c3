"""The steps from a plan to a bundle, in order: weights, kernels, programs, proof and prices, seal.

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
from tandem.artifacts.weights import MappedWeights
from tandem.artifacts.writer import BundleWriter
from tandem.compile import report
from tandem.compile.checkpoints.base import Checkpoint
from tandem.compile.compose import Composer
from tandem.compile.examine import examine
from tandem.compile.plan import Plan
from tandem.compile.progress import Progress
from tandem.compile.store import write_weights
from tandem.compile.tokenizer import quick_text
from tandem.device import ISA_FLAGS, this_machine
from tandem.kernels.build import build_library, read_signatures
from tandem.keys import Kind


def build_bundle(plan: Plan, checkpoint: Checkpoint, target: Path, *, replace: bool, progress: Progress) -> Manifest:
    """Builds, proves, prices and publishes the bundle of `plan` at `target`; nothing is left behind on failure."""
    with BundleWriter(target, replace=replace) as writer:
        writer.add(layout.TOKENIZER, quick_text(checkpoint.tokenizer_json, plan.name).encode())

        progress.stage("weights", 30)
        weights = writer.path(layout.WEIGHTS)
        write_weights(
            plan.spec,
            plan.profile,
            checkpoint,
            weights,
            context_length=plan.geometry.context_length,
            advance=lambda nbytes: progress.advance(30 * nbytes / plan.weight_bytes),
        )

        progress.stage(f"kernels for {plan.isa}", 10)
        library = _add_library(writer, plan.isa)

        progress.stage("programs", 5)
        programs = _add_programs(writer, plan, weights, library)

        progress.stage("proof and prices", 50)
        found = examine(
            plan.geometry,
            weights=weights,
            library=library,
            programs=programs,
            threads=this_machine().cores,
            advance=lambda step: progress.advance(0.5, step),  # there are about 100
        )
        prices = {**found["prices"], "measured": _measured()}
        writer.add(layout.PRICES, _json(prices))
        writer.add(layout.PROOF, _json(found["proof"]))
        writer.add(layout.ORACLE, _json(found["oracle"]))
        writer.add(layout.REPORT, report.page(plan.summary(), prices, found["proof"]).encode())
        writer.add(layout.STAIRCASE, report.staircase(prices).encode())

        progress.stage("seal", 5)
        return writer.publish(_draft(plan, checkpoint, found["proof"]))


def _add_library(writer: BundleWriter, isa: str) -> Path:
    with TemporaryDirectory() as folder:
        sha256 = writer.add_kernel(build_library(isa, Path(folder) / "library.so").read_bytes())
    return writer.path(layout.kernel_file(sha256))


def _add_programs(writer: BundleWriter, plan: Plan, weights: Path, library: Path) -> dict[Kind, Path]:
    composer = Composer(
        plan.spec, plan.profile, plan.geometry, MappedWeights(weights), read_signatures(library), library.stem
    )
    paths = {}
    for kind in plan.entries:
        paths[kind] = writer.path(layout.program_file(kind.value))
        paths[kind].write_bytes(encode(composer.program(kind)))
    return paths


def _draft(plan: Plan, checkpoint: Checkpoint, proof: dict[str, Any]) -> Draft:
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
        quality=None,
        resolved=plan.resolved,
    )


def _measured() -> str:
    machine = this_machine()
    return f"{datetime.now(UTC):%Y-%m-%d} on {machine.product}, {machine.cores} cores, medians"


def _json(value: dict[str, Any]) -> bytes:
    return json.dumps(value, indent=1).encode()
