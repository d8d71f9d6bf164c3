"""A small sound bundle for GPUs, made by the real writer, and a GPU that it suits."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from tandem.artifacts import layout
from tandem.artifacts.manifest import CudaPriceFacts, CudaValidity, Draft, EntryRecord, Host, Manifest
from tandem.artifacts.program import EDGE, LAUNCH, PARAM, Kernel, Program, Region, encode
from tandem.artifacts.writer import BundleWriter
from tandem.gpu import Gpu, Survey
from tandem.keys import Kind
from tests.artifacts import sample

DEVICE = "cuda-sm90"
CUBINS = b"\x7fELF no real cubin", b"\x7fELF nor this"
LIBRARY = b"\x7fELF no real library"
GPU = Gpu(0, "NVIDIA H200", "nvidia-h200", "9.0", 132, 140 << 30, "13.0", "00000000-0000-0000-0000-000000000000")
A100 = replace(GPU, name="NVIDIA A100", product="nvidia-a100", capability="8.0")
HERE = Survey((GPU,))
ROWS, CLASSES = (1, 2, 4), (1024, 2048)


def entries() -> tuple[EntryRecord, ...]:
    """Chain and extend in one program for each class and row count, trees in their own, and a commit for any."""
    facts: list[tuple[Kind, int, int, str]] = [
        (kind, context, rows, f"{'tree' if kind is Kind.VERIFY_TREE else 'chain'}-{context}-{rows}")
        for kind in (Kind.EXTEND, Kind.VERIFY_CHAIN, Kind.VERIFY_TREE)
        for context in CLASSES
        for rows in ROWS
    ]
    facts.append((Kind.COMMIT, 0, 0, "commit"))
    return tuple(
        EntryRecord(kind=k, context_class=c, rows=r, part="whole", program=layout.program_file(name), sha256="")
        for k, c, r, name in facts
    )


def host(gpu: Gpu = GPU) -> Host:
    plain = sample.draft().host
    validity = msgspec.structs.replace(plain.validity, cuda=CudaValidity(capability=gpu.capability, driver="12.8"))
    facts = CudaPriceFacts(product=gpu.product, multiprocessors=gpu.multiprocessors, memory=gpu.memory)
    return Host(validity=validity, price=msgspec.structs.replace(plain.price, gpu=facts))


def draft(**changes: Any) -> Draft:
    return sample.draft(**({"device": DEVICE, "host": host(), "entries": entries()} | changes))


def program(binaries: tuple[str, ...], rows: int) -> Program:
    """Two launches, the second behind the trigger of the first, over `rows` blocks."""
    kernels = tuple(Kernel(binary, "f", (8, 4), 256) for binary in binaries)
    launches = np.array([(i, 2 * i, 2, 0, (rows, 1, 1), (128, 1, 1), 256) for i in range(2)], LAUNCH)
    params = np.array([(0, 4, 8, 4), (-1, 1, rows, 0)] * 2, PARAM)
    edges = np.array([(0, 1, 1, 0, 1, (0,) * 5)], EDGE)
    return Program(kernels, (Region("io", 64),), launches, params, edges)


def write(target: Path, *, cubins: tuple[bytes, ...] = CUBINS, lanes: int = 1, **changes: Any) -> Manifest:
    """Publishes the sample at `target`; `changes` go to `draft`."""
    made = draft(**changes)
    with BundleWriter(target) as writer:
        sample.fill_data(writer)
        writer.add_kernel(LIBRARY)
        binaries = tuple(writer.add_cubin(data) for data in cubins)
        for name in sorted({entry.program for entry in made.entries}):
            rows = int(name.removesuffix(".tdp").rpartition("-")[2] if "-" in name else 1)
            writer.add(name, encode(program(binaries, rows * lanes)))
        return writer.publish(made)
