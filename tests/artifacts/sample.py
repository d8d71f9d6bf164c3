"""A small sound bundle made by the real writer, and ways to change it behind Tandem's back."""

from __future__ import annotations

import dataclasses
import json
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tandem.artifacts import layout, program
from tandem.artifacts.drafter import DrafterRecord
from tandem.artifacts.geometry import GeometryRecord
from tandem.artifacts.io import BlockGeometry, DraftGeometry, Geometry
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
from tandem.artifacts.resolved import Resolved
from tandem.artifacts.weights import WeightsWriter
from tandem.artifacts.writer import BundleWriter
from tandem.device import this_machine
from tandem.keys import DRAFTER_KINDS, TARGET_KINDS, Kind

GEOMETRY = Geometry(64, 100, 8, 4, 2, 16, 4096, ((2, 64), (2, 64)))
HELD = DraftGeometry(tap_rows=520, tap_width=48, page_bytes=4096, kv_planes=((2, 64), (2, 64)), top=2)
BLOCK = BlockGeometry(rows=5, mask_token=99, context_length=50)
CHECKPOINT = "ab" * 32
DRAFTER = DrafterRecord(kind="mtp", length=4, tap_layers=(), vocab_size=100, weights=CHECKPOINT, target=CHECKPOINT)
BLOCKS = DrafterRecord(
    kind="dflash2", length=4, tap_layers=(1, 3), vocab_size=100, weights="cd" * 32, target=CHECKPOINT
)
LIBRARY = b"\x7fELF no real library"
WEIGHTS = {"a": np.arange(15, dtype=np.float32).reshape(3, 5), "b": np.arange(64, dtype=np.uint16)}
DTYPES = {"float32": "F32", "uint16": "BF16", "uint8": "U8"}
PRICES = {"1024": {"extend": {"1": 2.0, "8": 3.0}, "plain": 2.0}, "step_ms": 0.1, "measured": "by hand"}


def entries(*kinds: Kind) -> tuple[EntryRecord, ...]:
    """One of each kind, for any context and rows."""
    return tuple(
        EntryRecord(kind=k, context_class=0, rows=0, part="whole", program=layout.program_file(k), sha256="")
        for k in kinds
    )


def drafting(**changes: Any) -> dict[str, Any]:
    """What a draft states of a drafter that is a model."""
    geometry = GeometryRecord.of(dataclasses.replace(GEOMETRY, drafter=HELD))
    return {"geometry": geometry, "entries": entries(*TARGET_KINDS, *DRAFTER_KINDS), "drafter": DRAFTER} | changes


def blocks(**changes: Any) -> dict[str, Any]:
    """The same of one that drafts blocks."""
    held = dataclasses.replace(HELD, tap_width=96, top=4, block=BLOCK)
    geometry = GeometryRecord.of(dataclasses.replace(GEOMETRY, drafter=held))
    return drafting() | {"geometry": geometry, "drafter": BLOCKS} | changes


def draft(**changes: Any) -> Draft:
    """Facts of a bundle for this very machine."""
    machine = this_machine()
    facts: dict[str, Any] = {
        "name": "Tiny",
        "family": "llama",
        "profile": "bf16",
        "device": machine.device,
        "arithmetic": "exact",
        "geometry": GeometryRecord.of(GEOMETRY),
        "entries": entries(*TARGET_KINDS),
        "tokenizer": TokenizerFacts(chat_template="{{ 'ü' }}", bos_token=None, eos_token="</s>", stop_ids=(2, 0)),
        "host": Host(
            validity=Validity(arch=machine.arch, isa_level=machine.isa_level, flags=(), abi=machine.abi, cuda=None),
            price=PriceFacts(product=machine.product, cores=machine.cores, memory=machine.memory, gpu=None),
        ),
        "proof": ProofSummary(cases=12, differing=0),
        "quality": None,
        "drafter": None,
    }
    facts |= changes
    facts.setdefault("resolved", resolved(facts))
    return Draft(**facts)


def resolved(facts: dict[str, Any], **changes: Any) -> Resolved:
    """A configuration that agrees with the `facts` of a draft."""
    settled: dict[str, Any] = {
        "checkpoint": CHECKPOINT,
        "spec": {"family": "llama", "rms_norm_eps": 1e-5},
        "profile": {"name": facts["profile"]},
        "device": facts["device"],
        "geometry": facts["geometry"],
        "entries": tuple(dict.fromkeys(entry.kind for entry in facts["entries"])),
        "flags": ("-O3",),
        "program_version": program.VERSION,
        "sources": {"kernels/cpu/linear.cpp": "cd" * 32},
        "tools": {"compiler": "g++ 12.2"},
        "environment": {},
        "drafter": facts["drafter"],
    }
    return Resolved(**{**settled, **changes})


def fill(
    writer: BundleWriter,
    note: str = "sample",
    *,
    library: bytes = LIBRARY,
    weights: dict[str, np.ndarray] | None = None,
    launches: int = 1,
    kinds: Sequence[Kind] = TARGET_KINDS,
    **files: object,
) -> None:
    """Every required file, a program of each of `kinds` and a library. `files` are JSON by name without its ending."""
    binary = writer.add_kernel(library)
    for kind in kinds:
        writer.add(layout.program_file(kind), program.encode(_program(binary, launches)))
    fill_data(writer, note, weights=weights, **files)


def fill_data(
    writer: BundleWriter, note: str = "sample", *, weights: dict[str, np.ndarray] | None = None, **files: object
) -> None:
    """All files but programs and native code."""
    tensors = weights or WEIGHTS
    announced = [(name, DTYPES[array.dtype.name], array.shape) for name, array in tensors.items()]
    with WeightsWriter(writer.path(layout.WEIGHTS), announced) as file:
        for name, array in tensors.items():
            file.write(name, array)
    contents = {"tokenizer": {"version": "1.0"}, "prices": PRICES, "proof": {"cases": 12}, "oracle": {}} | files
    for name, value in contents.items():
        writer.add(f"{name}.json", json.dumps(value).encode())
    writer.add(layout.REPORT, note.encode())


def _program(binary: str, count: int) -> program.Program:
    launches = np.array([(0, i, 1, 1, (0, 0, 0), (0, 0, 0), 0) for i in range(count)], program.LAUNCH)
    params = np.array([(0, 4, 8, 4)] * count, program.PARAM)
    return program.Program((program.Kernel(binary, "f", (8,)),), (program.Region("io", 64),), launches, params)


def write(
    target: Path, *, replace: bool = False, note: str = "sample", contents: dict[str, Any] | None = None, **changes: Any
) -> Manifest:
    """Publishes the sample at `target`; `contents` go to `fill`, `changes` to `draft`."""
    drafted = draft(**changes)
    kinds = tuple(dict.fromkeys((*TARGET_KINDS, *(entry.kind for entry in drafted.entries))))
    with BundleWriter(target, replace=replace) as writer:
        fill(writer, note, **{"kinds": kinds} | (contents or {}))
        return writer.publish(drafted)


def copy(source: Path, target: Path) -> Path:
    """A copy of a bundle whose files may be written to."""
    shutil.copytree(source, target)
    for path in target.rglob("*"):
        if path.is_file():
            path.chmod(0o644)
    return target


def edit_manifest(bundle: Path, change: Callable[[dict[str, Any]], object]) -> None:
    """Changes fields and spells the manifest as Tandem would, but does not seal it again."""
    path = bundle / layout.MANIFEST
    fields = json.loads(path.read_text())
    change(fields)
    path.write_text(json.dumps(fields, sort_keys=True, indent=2, ensure_ascii=False) + "\n")
