"""Trouble in the middle: a GPU that is gone answers each call with an error, Ctrl-C comes while weights do."""

from __future__ import annotations

import os
import signal
import threading
from pathlib import Path
from typing import Any

import pytest

from tandem.driver import Driver
from tandem.errors import DeviceError
from tandem.keys import Kind
from tandem.runtime.executor.cuda.executor import CudaExecutor
from tandem.runtime.executor.cuda.weights import Weights
from tandem.runtime.gpu import open_image
from tests.runtime.executor.cuda.echo import LOST, NUM_PAGES, Gone, Gpu, step
from tests.runtime.executor.cuda.sample import image


def graph_threads() -> int:
    return sum(thread.name == "graphs" or thread.name.startswith("weights") for thread in threading.enumerate())


def test_a_gpu_that_goes_while_it_is_loaded_is_told_by_its_first_word(tmp_path: Path) -> None:
    made, plain = image(tmp_path), Gone()
    CudaExecutor(made, num_pages=NUM_PAGES, driver=Driver(plain)).close()
    for at in range(1, len(plain.calls) // 2, 7):
        gpu = Gone()
        gpu.gone_at, loaded = at, False
        with pytest.raises(DeviceError) as caught:
            executor = open_image(made, pages=(1, NUM_PAGES), driver=Driver(gpu))
            loaded = True  # it went behind the last call that anybody waits for
            executor.close()
        assert caught.value.code == LOST
        # Of several threads that meet it, one is told of; never what gives things back.
        assert loaded or not caught.value.call.endswith(("Destroy_v2", "Release_v2", "Free_v2", "Unload", "FreeHost"))
    assert graph_threads() == 0


def test_a_gpu_that_goes_while_it_serves(tmp_path: Path) -> None:
    gpu = Gone()
    executor = CudaExecutor(image(tmp_path), num_pages=NUM_PAGES, driver=Driver(gpu))
    executor.finish()
    executor.run(Kind.EXTEND, step())
    gpu.gone_at = 0
    for _ in range(2):
        with pytest.raises(DeviceError, match=r"cuMemcpyHtoDAsync_v2 says .*46.*; look at nvidia-smi"):
            executor.run(Kind.EXTEND, step())
    with pytest.raises(DeviceError):
        executor.close()
    executor.close()
    assert graph_threads() == 0


class Slow(Gpu):
    """One whose copies wait until they may go on."""

    def __init__(self) -> None:
        super().__init__()
        self.go = threading.Event()

    def _cuMemcpyHtoDAsync(self, *arguments: Any) -> Any:
        self._lock.release()  # others call meanwhile
        self.go.wait(10)
        self._lock.acquire()
        return super()._cuMemcpyHtoDAsync(*arguments)


def test_ctrl_c_while_weights_come_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gpu, join, waiting = Slow(), Weights.join, threading.Event()

    def joined(weights: Weights) -> None:
        waiting.set()
        join(weights)

    def interrupt() -> None:
        waiting.wait(10)
        os.kill(os.getpid(), signal.SIGINT)
        threading.Timer(0.05, gpu.go.set).start()

    monkeypatch.setattr(Weights, "join", joined)
    threading.Thread(target=interrupt).start()
    with pytest.raises(KeyboardInterrupt):
        open_image(image(tmp_path), pages=(1, NUM_PAGES), driver=Driver(gpu))
    assert gpu.go.wait(10) and graph_threads() == 0
    assert (gpu.faults, gpu.left()) == ([], {})
