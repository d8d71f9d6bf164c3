"""A module with glue between its operators, compiled on the GPU and run as the executor runs it: right, row by row."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

import numpy as np
import pytest
import torch

from tandem.artifacts.program import Program, decode, encode
from tandem.compile.cuda.check import check_programs
from tandem.compile.cuda.glue_compile import GlueLaunch
from tandem.compile.cuda.glue_kernel import GlueKernel, compile_kernels
from tandem.compile.cuda.programs import Lowered, encode_program
from tandem.compile.cuda.target import CAPABILITIES
from tandem.compile.profile import Profile, find_profile
from tandem.gpu import gpus
from tandem.kernels.cuda.build import compile_variants
from tandem.keys import Kind
from tandem.runtime.executor.cuda.executor import CudaExecutor
from tandem.runtime.executor.cuda.image import Image
from tandem.runtime.rows import Span, extend_rows
from tests.compile.cuda import gated

MOST_OUTPUTS = gated.IO.geometry.max_outputs
TOKENS = [(7 * i * i + 3) % gated.VOCAB for i in range(max(gated.BUCKETS))]
ERRORS = {"fp32": 1e-5, "bf16": 2e-2}
"""Of logits against float64, as a share of their norm; in bf16 each of three products rounds its rows."""


@dataclass(frozen=True)
class Built:
    """The module's programs, one a bucket, and all that they were made of."""

    module: gated.Gated
    weights: Path
    lowered: list[Lowered]
    programs: list[Program]
    glue: dict[GlueKernel, list[GlueLaunch]]
    cubins: dict[str, bytes]
    device: int


@pytest.fixture(scope="module", params=ERRORS)
def profile(request: pytest.FixtureRequest) -> Profile:
    return find_profile(request.param)


@pytest.fixture(scope="module")
def built(profile: Profile, tmp_path_factory: pytest.TempPathFactory) -> Built:
    gpu, cubins = gpus()[0], dict[str, bytes]()

    def add(data: bytes) -> str:
        name = sha256(data).hexdigest()
        cubins[name] = data
        return name

    module, path = gated.Gated(profile), tmp_path_factory.mktemp("gated") / "weights"
    weights = gated.write_weights(module, profile, path)
    lowered = [gated.lower(module, profile, weights, rows) for rows in gated.BUCKETS]
    wanted = sorted({variant for low in lowered for variant in low.variants()}, key=repr)
    variants = compile_variants(wanted, CAPABILITIES[gpu.capability])
    glue = compile_kernels((kernel for low in lowered for kernel in low.glue.values()), gpu.index)
    programs = [decode(encode(encode_program(low, variants, add, glue)), "gated") for low in lowered]
    return Built(module, path, lowered, programs, glue, cubins, gpu.index)


@pytest.fixture(scope="module")
def executor(built: Built) -> Iterator[CudaExecutor]:
    """Scratch is full of NaNs at first, beyond the live rows as well."""
    entries = [(Kind.EXTEND, 0, rows, made) for rows, made in zip(gated.BUCKETS, built.programs, strict=True)]
    image = Image(gated.IO.geometry, built.weights, entries, built.cubins, built.device)
    made = CudaExecutor(image, num_pages=1, poison=True)
    made.finish()
    yield made
    made.close()


def logits(executor: CudaExecutor, tokens: list[int]) -> np.ndarray:
    """[O, VOCAB] of the last rows of a pass, which also chooses what they choose."""
    rows = extend_rows([Span(0, 0, tokens, output=True)], np.zeros((1, 1), np.int32))
    rows.output_row = np.arange(max(0, len(tokens) - MOST_OUTPUTS), len(tokens), dtype=np.int32)
    outcome = executor.run(Kind.EXTEND, rows)
    found = np.stack([executor.logits(i).copy() for i in range(len(rows.output_row))])
    top = np.sort(found, axis=1)
    assert (np.asarray(outcome.argmax) == found.argmax(1)).all()
    assert (np.asarray(outcome.gap) == top[:, -1] - top[:, -2]).all()
    return found


def test_rows_are_eagers_and_have_the_same_bits_in_every_bucket(
    executor: CudaExecutor, built: Built, profile: Profile
) -> None:
    found = logits(executor, TOKENS)
    rows = torch.arange(len(TOKENS) - MOST_OUTPUTS, len(TOKENS), dtype=torch.int32)
    exact = gated.Gated(profile).double()(torch.tensor(TOKENS, dtype=torch.int32), rows)[0].detach().numpy()
    assert exact.dtype == np.float64
    assert np.linalg.norm(found - exact) < ERRORS[profile.name] * np.linalg.norm(exact)
    for count in (1, 2, 7, 8, 9, 31, 32, 33, 63, 1):
        again = logits(executor, TOKENS[-count:])
        assert (again == found[-len(again) :]).all(), f"{count} rows"


def test_launches_between_glue_are_those_that_triton_makes(built: Built) -> None:
    for pair in zip(built.lowered, built.programs, strict=True):
        assert check_programs([pair], built.device) == 1


def test_glue_compiled_again_is_the_same(built: Built) -> None:
    again = compile_kernels(list(built.lowered[1].glue.values()), built.device)
    assert again == {kernel: built.glue[kernel] for kernel in again}
