"""A fake GPU that must have nothing left, and chunks of weights so small that there are several."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tandem.runtime.executor.cuda import weights
from tests.runtime.executor.cuda.echo import Gpu


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(weights, "CHUNK", 30_000)


@pytest.fixture
def gpu() -> Iterator[Gpu]:
    made = Gpu()
    yield made
    assert (made.faults, made.left()) == ([], {})
