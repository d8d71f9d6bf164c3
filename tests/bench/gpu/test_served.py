"""What is made after ready is counted at the driver's own calls, whoever makes them."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.gpu import served
from tandem.driver import Driver
from tandem.runtime.executor.cuda.executor import CudaExecutor
from tests.fake_driver import FakeCuda
from tests.runtime.executor.cuda import sample


def test_loads_builds_and_allocations_are_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in served.MAKING:  # put back at the end, whatever counts meanwhile
        monkeypatch.setattr(Driver, name, getattr(Driver, name))
    calls = served.counted()
    executor = CudaExecutor(sample.image(tmp_path), num_pages=4, driver=Driver(FakeCuda()))
    executor.finish()
    loaded = executor.loaded
    assert calls["module"] == loaded.module_loads == len(sample.CUBINS)
    assert calls["graph"] == calls["instantiate"] == loaded.graph_builds
    assert calls["alloc"] == len(loaded.region_bytes)
    before = calls.copy()
    executor.kv([0], 10)
    assert calls == before
    executor._driver.free(executor._driver.alloc(64))
    assert calls - before == {"alloc": 1}
    executor.close()
