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
from tandem.artifacts.manifest import Draft, Manifest, ProofSummary, TokenizerFacts
from tandem.artifacts.writer import BundleWriter
from tandem.compile import report
from tandem.compile.checkpoints.base import Checkpoint
from tandem.compile.examine import examine
from tandem.compile.gate import limits
from tandem.compile.plan import Plan
from tandem.compile.progress import Progress
from tandem.compile.target import Staging
from tandem.compile.tokenizer import quick_text


def build_bundle(
    plan: Plan, checkpoint: Checkpoint, target: Path, *, replace: bool, accept_quality: bool = False, progress: Progress
) -> Manifest:
    """Builds, measures, proves, prices and publishes the bundle of `plan` at `target`; nothing is left on failure.

    QualityError for a low-bit profile that costs more than its limits, unless `accept_quality` seals it all the same.
    """
    with BundleWriter(target, replace=replace) as writer:
        writer.add(layout.TOKENIZER, quick_text(checkpoint.tokenizer_json, plan.name).encode())
        with TemporaryDirectory(dir=writer.path(layout.WEIGHTS).parent) as scratch:
            staging = plan.target.stage(writer, plan, checkpoint, Path(scratch), progress)
        quality = staging.quality
        if quality and not accept_quality:
            limits.require(quality, plan.profile.name)

        progress.stage("proof and prices", 40 if quality else 65)
        found = examine(staging.staged, lambda step: progress.advance(0.5, step))  # there are about 100
        prices = {**found["prices"], "measured": _measured(plan)}
        writer.add(layout.PRICES, _json(prices))
        writer.add(layout.PROOF, _json(found["proof"]))
        writer.add(layout.ORACLE, _json(found["oracle"]))
        writer.add(layout.REPORT, report.page(plan.summary(), prices, found["proof"], quality).encode())
        writer.add(layout.STAIRCASE, report.staircase(prices).encode())

        progress.stage("seal", 5)
        return writer.publish(_draft(plan, checkpoint, staging, found["proof"]))


def _draft(plan: Plan, checkpoint: Checkpoint, staging: Staging, proof: dict[str, Any]) -> Draft:
    return Draft(
        name=plan.name,
        family=plan.spec.family,
        profile=plan.profile.name,
        device=plan.device,
        arithmetic="exact",
        geometry=GeometryRecord.of(plan.geometry),
        entries=staging.entries,
        tokenizer=TokenizerFacts(
            chat_template=checkpoint.chat_template,
            bos_token=checkpoint.bos_token,
            eos_token=checkpoint.eos_token,
            stop_ids=checkpoint.stop_ids,
        ),
        host=plan.target.host(),
        proof=ProofSummary(cases=proof["cases"], differing=proof["differing"]),
        quality=staging.quality,
        drafter=plan.resolved.drafter,
        resolved=plan.resolved,
    )


def _measured(plan: Plan) -> str:
    return f"{datetime.now(UTC):%Y-%m-%d} on {plan.target.product}, least of several"


def _json(value: dict[str, Any]) -> bytes:
    return json.dumps(value, indent=1).encode()
