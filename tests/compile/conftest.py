"""Tiny operators on one thread, since more would only wait for each other, and a machine key of the tests' own."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

from tandem.compile import build
from tandem.compile.cpu import target
from tandem.keys import DRAFTER_KINDS, TARGET_KINDS
from tests.bundles import state_home
from tests.kernels.harness import library


@pytest.fixture(scope="package", autouse=True)
def own_key() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_STATE_HOME", str(state_home()))
        patch.setenv("CUDA_VISIBLE_DEVICES", "")  # builds here are the CPU's, whatever this machine has
        yield


@pytest.fixture(scope="package", autouse=True)
def one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@dataclass(slots=True)
class Proving:
    """What stands in for the proving process: its answer, and how often it was asked."""

    answer: dict[str, Any]
    calls: int = 0

    def __call__(self, *_: object, **__: object) -> dict[str, Any]:
        self.calls += 1
        return self.answer


@contextmanager
def ready_library(isa: str, target: Path) -> Iterator[Callable[[], Path]]:
    """What stands in for the compilers: the tests' own library."""
    yield lambda: Path(shutil.copy(library(), target))


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> Proving:
    """Builds take the tests' library and a made-up proof: seconds become tenths."""
    curve = {str(rows): 1.0 + rows / 64 for rows in (1, 16, 32)}
    prices: dict[str, Any] = {kind.value: curve for kind in (*TARGET_KINDS, *DRAFTER_KINDS)} | {"plain": curve["1"]}
    proof = {"cases": 3, "differing": 0, "first": []}
    proving = Proving({"proof": proof, "oracle": {"load": []}, "prices": {"256": prices, "step_ms": 0.01}})
    library()  # made by the very function that is exchanged now
    monkeypatch.setattr(build, "examine", proving)
    monkeypatch.setattr(target.build, "library_build", ready_library)
    return proving
