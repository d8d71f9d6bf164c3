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
        gpu.gone_at = at
        with pytest.raises(DeviceError) as caught:
            executor = open_image(made, pages=(1, NUM_PAGES), driver=Driver(gpu))
            executor.close()  # it may go just behind the last call
        assert caught.value.code == LOST
        # Of several threads that meet it, one is told of; never what gives things back.
        assert not caught.value.call.endswith(("Destroy_v2", "Release_v2", "Free_v2", "Unload", "FreeHost"))
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


def test_ctrl_c_while_weights_come_leaves_nothing(gpu: Gpu, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made, whole, join = image(tmp_path), os.preadv, Weights.join
    waiting, go = threading.Event(), threading.Event()

    def slow(file: int, buffers: Any, offset: int) -> int:
        go.wait(10)
        return whole(file, buffers, offset)

    def joined(weights: Weights) -> None:
        waiting.set()
        join(weights)

    def interrupt() -> None:
        waiting.wait(10)
        os.kill(os.getpid(), signal.SIGINT)
        threading.Timer(0.05, go.set).start()

    monkeypatch.setattr(os, "preadv", slow)
    monkeypatch.setattr(Weights, "join", joined)
    driver = Driver(gpu)
    threading.Thread(target=interrupt).start()
    with pytest.raises(KeyboardInterrupt):
        CudaExecutor(made, num_pages=NUM_PAGES, driver=driver)
    assert go.wait(10) and graph_threads() == 0
