"""GPUs that nobody has, and what stands for Triton and for captures on them."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import pytest

from tandem.artifacts.program import Program
from tandem.compile.cuda import check, target
from tandem.compile.cuda.programs import Lowered
from tandem.compile.profile import find_profile
from tandem.kernels.cuda import build
from tandem.kernels.cuda.build import Cubin, Variant
from tests.artifacts.cuda_sample import GPU
from tests.compile.cuda import gated
from tests.compile.cuda.lowered import fake

See = Callable[..., None]


@pytest.fixture
def see(monkeypatch: pytest.MonkeyPatch) -> See:
    """Puts these GPUs in a build's sight."""
    return lambda *found: monkeypatch.setattr(target, "gpus", lambda: tuple(found))


class Compiler:
    """What stands for Triton; `checked` are the programs that would be captured, `fault` is raised instead."""

    def __init__(self) -> None:
        self.compiled: list[Variant] = []
        self.checked: list[tuple[Lowered, Program]] = []
        self.fault: Exception | None = None

    def compile(
        self, variants: Iterable[Variant], capability: int, advance: Callable[[], None]
    ) -> dict[Variant, Cubin]:
        self.compiled = list(variants)
        assert capability == 90
        for _ in self.compiled:
            advance()
        return {variant: fake(variant) for variant in self.compiled}

    def check(self, pairs: list[tuple[Lowered, Program]], device: int) -> int:
        self.checked = pairs
        if self.fault is not None:
            raise self.fault
        assert device == GPU.index
        return len(pairs)


@pytest.fixture
def compiler(monkeypatch: pytest.MonkeyPatch) -> Compiler:
    compiler = Compiler()
    monkeypatch.setattr(build, "compile_variants", compiler.compile)
    monkeypatch.setattr(check, "check_programs", compiler.check)
    return compiler


@pytest.fixture(scope="session")
def buckets(tmp_path_factory: pytest.TempPathFactory) -> gated.Buckets:
    """A module with glue, lowered."""
    found = {}
    for profile in map(find_profile, ("bf16", "fp32")):
        module = gated.Gated(profile)
        weights = gated.write_weights(module, profile, tmp_path_factory.mktemp("gated") / "weights")
        found |= {(profile.name, rows): gated.lower(module, profile, weights, rows) for rows in gated.BUCKETS}
    return found
