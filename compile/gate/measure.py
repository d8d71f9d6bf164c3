"""Holds a low-bit profile against the same checkpoint in fp32: both run on the runtime, over the same texts.

Knows the files of the two sides, not what the figures mean: `limits` judges them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from tandem.artifacts.digest import sha256_file
from tandem.artifacts.program import encode
from tandem.artifacts.quality import Quality
from tandem.artifacts.weights import MappedWeights
from tandem.compile.checkpoints.base import Checkpoint
from tandem.compile.cpu import panels
from tandem.compile.cpu.composer import CpuComposer, geometry
from tandem.compile.examine import Staged, converse
from tandem.compile.gate import limits
from tandem.compile.gate.material import Material, make_material
from tandem.compile.plan import Plan
from tandem.compile.profile import find_profile
from tandem.compile.store import write_weights
from tandem.kernels.build import read_signatures
from tandem.keys import Kind

MODULE = "tandem.runtime.checks.gate"


def write_reference(plan: Plan, checkpoint: Checkpoint, folder: Path) -> Path:
    """Writes the checkpoint's weights in the reference profile into `folder`; 4 bytes a parameter."""
    path = folder / "reference.safetensors"
    profile = find_profile(limits.REFERENCE)
    write_weights(plan.spec, profile, checkpoint, path, layout=panels, context_length=plan.geometry.context_length)
    return path


def measure_quality(
    plan: Plan, checkpoint: Checkpoint, subject: Staged, reference_weights: Path, advance: Callable[[str], None]
) -> Quality:
    """The quality record of `subject`, whether it holds or not.

    QualityError for a loss that is no number, CompileError when the process did not come to an end.
    """
    g = plan.geometry
    material = make_material(checkpoint, g.context_length, g.vocab_size)
    reference = _reference(plan, replace(subject, weights=reference_weights))
    return limits.record(converse(MODULE, _request(subject, reference, material, checkpoint.stop_ids), advance))


def _reference(plan: Plan, staged: Staged) -> Staged:
    """The reference's program over its weights; only `extend`, all that the gate runs."""
    profile, g = find_profile(limits.REFERENCE), plan.geometry
    sizes = geometry(plan.spec, profile, g.context_length, max_rows=g.max_rows, max_lanes=g.max_lanes)
    signatures, weights = read_signatures(staged.library), MappedWeights(staged.weights)
    composer = CpuComposer(plan.spec, profile, sizes, weights, signatures, sha256_file(staged.library))
    path = staged.weights.with_suffix(".tdp")
    path.write_bytes(encode(composer.program(Kind.EXTEND)))
    return replace(staged, geometry=sizes, programs={Kind.EXTEND: path})


def _request(subject: Staged, reference: Staged, material: Material, stop_ids: tuple[int, ...]) -> dict[str, Any]:
    return asdict(material) | {
        "subject": subject.request(),
        "reference": reference.request(),
        "stop_ids": stop_ids,
        "confident_gap": limits.CONFIDENT_GAP,
    }
