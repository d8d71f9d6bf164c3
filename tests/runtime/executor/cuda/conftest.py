"""A fake GPU that must have nothing left, an executor on it, and chunks of weights so small that there are several.

A module whose GPU or bundle is of another kind names it: `GPU`, and `made_image`, which takes a folder.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tandem.driver import Driver
from tandem.runtime.executor.cuda import weights
from tandem.runtime.executor.cuda.executor import CudaExecutor
from tests.runtime.executor.cuda.echo import NUM_PAGES, Gpu


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(weights, "CHUNK", 30_000)


@pytest.fixture
def gpu(request: pytest.FixtureRequest) -> Iterator[Gpu]:
    made = getattr(request.module, "GPU", Gpu)()
    yield made
    assert (made.faults, made.left()) == ([], {})


@pytest.fixture
def executor(request: pytest.FixtureRequest, gpu: Gpu, tmp_path: Path) -> Iterator[CudaExecutor]:
    image = request.module.made_image(tmp_path)
    made = CudaExecutor(image, num_pages=NUM_PAGES, poison=True, driver=Driver(gpu))
    made.finish()
    yield made
    made.close()
