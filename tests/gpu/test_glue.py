"""A module with glue between its operators, compiled on the GPU and run as the executor runs it: right, row by row."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

import numpy as np
import pytest

from tandem.artifacts.program import Program, decode, encode
from tandem.compile.cuda.check import check_programs
from tandem.compile.cuda.glue_compile import GlueLaunch
from tandem.compile.cuda.glue_kernel import GlueKernel, compile_kernels
from tandem.compile.cuda.programs import Lowered, encode_program
from tandem.compile.cuda.target import CAPABILITIES
from tandem.compile.profile import Profile, find_profile
from tandem.gpu import gpus
from tandem.kernels.cuda.build import compile_variants
from tandem.runtime.executor.cuda.executor import CudaExecutor
from tests.compile.cuda import executed, gated

# What torch's compiler warns of its own insides is shown, and no fault of what it compiles.
pytestmark = pytest.mark.filterwarnings("default")


@dataclass(frozen=True)
class Built:
    """The module's programs, one a bucket, and all that they were made of."""

    weights: Path
    lowered: list[Lowered]
    programs: list[Program]
    glue: dict[GlueKernel, list[GlueLaunch]]
    cubins: dict[str, bytes]
    device: int


@pytest.fixture(scope="module", params=list(executed.ERRORS))
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
    return Built(path, lowered, programs, glue, cubins, gpu.index)


@pytest.fixture(scope="module")
def executor(built: Built) -> Iterator[CudaExecutor]:
    """Scratch is full of NaNs at first, beyond the live rows as well."""
    image = executed.image(built.programs, built.weights, built.cubins, built.device)
    made = CudaExecutor(image, num_pages=1, poison=True)
    made.finish()
    yield made
    made.close()


def test_rows_are_eagers_and_have_the_same_bits_in_every_bucket(executor: CudaExecutor, profile: Profile) -> None:
    found, exact = executed.logits(executor, executed.TOKENS), executed.eager(profile)
    assert np.linalg.norm(found - exact) < executed.ERRORS[profile.name] * np.linalg.norm(exact)
    for count in executed.FEWER:
        again = executed.logits(executor, executed.TOKENS[-count:])
        assert (again == found[-len(again) :]).all(), f"{count} rows"


def test_launches_between_glue_are_those_that_triton_makes(built: Built) -> None:
    for pair in zip(built.lowered, built.programs, strict=True):
        assert check_programs([pair], built.device) == 1


def test_glue_compiled_again_is_the_same(built: Built) -> None:
    again = compile_kernels(list(built.lowered[1].glue.values()), built.device)
    assert again == {kernel: built.glue[kernel] for kernel in again}
