"""Weights reach the device byte by byte, whatever the chunks; what cannot be read leaves nothing behind."""

from __future__ import annotations

import resource
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from tandem.driver import Driver
from tandem.errors import BundleCorrupt, CapacityError, DeviceError
from tandem.runtime.executor.cuda import weights
from tandem.runtime.executor.cuda.weights import Copier, Weights
from tests.copier import copier
from tests.fake_calls import ENDS
from tests.fake_driver import FakeCuda, driver_on

CHUNK = 1000


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> FakeCuda:
    monkeypatch.setattr(weights, "CHUNK", CHUNK)
    monkeypatch.setattr(weights, "READERS", 3)
    return FakeCuda()


@pytest.fixture
def driver(cuda: FakeCuda) -> Iterator[Driver]:
    with driver_on(cuda) as made:
        yield made


def copied(cuda: FakeCuda, driver: Driver, path: Path, nbytes: int) -> bytes:
    """What lies in device memory once it is there."""
    address = driver.alloc(nbytes + 1)
    copy = Weights(driver, next(iter(cuda.live["context"])), Copier(copier()), path, address, nbytes)
    try:
        copy.join()
        assert copy.ms > 0
        held = cuda.live["memory"][address].array
        assert held[nbytes] == 0xA5  # not a byte too far
        return held[:nbytes].tobytes()
    finally:
        copy.close()
        driver.free(address)


@pytest.mark.parametrize("nbytes", [1, 63, 999, 1000, 1001, 2000, 3000, 5999, 6001, 17_001, 100_003])
def test_every_byte_arrives_in_its_place(cuda: FakeCuda, driver: Driver, tmp_path: Path, nbytes: int) -> None:
    data = np.random.default_rng(nbytes).integers(0, 256, nbytes, np.uint8).tobytes()
    (tmp_path / "weights").write_bytes(data)
    assert copied(cuda, driver, tmp_path / "weights", nbytes) == data
    assert cuda.counts["cuMemcpyHtoDAsync_v2"] == -(-nbytes // CHUNK)
    assert cuda.counts["cuStreamCreate"] == min(3, -(-nbytes // CHUNK))


def test_a_file_that_is_shorter_now(cuda: FakeCuda, driver: Driver, tmp_path: Path) -> None:
    (tmp_path / "weights").write_bytes(bytes(4500))
    with pytest.raises(BundleCorrupt, match="weights: ends at byte 4500 of 9000; copy it again"):
        copied(cuda, driver, tmp_path / "weights", 9000)


def test_what_cannot_be_read(cuda: FakeCuda, driver: Driver, tmp_path: Path) -> None:
    (tmp_path / "weights").mkdir()
    with pytest.raises(BundleCorrupt, match=r"weights: byte \d+ cannot be read \(Is a directory\); copy it again"):
        copied(cuda, driver, tmp_path / "weights", 4500)


@pytest.mark.parametrize("number", range(60))
def test_a_call_that_fails_leaves_nothing(cuda: FakeCuda, driver: Driver, tmp_path: Path, number: int) -> None:
    (tmp_path / "weights").write_bytes(bytes(7500))
    cuda.fail_at = len(cuda.calls) + 1 + number
    try:
        copied(cuda, driver, tmp_path / "weights", 7500)
    except DeviceError:
        assert len(cuda.calls) > cuda.fail_at
    else:  # what fails when all bytes are there harms nobody
        assert len(cuda.calls) <= cuda.fail_at or cuda.calls[cuda.fail_at].endswith(ENDS)


def test_no_more_threads(cuda: FakeCuda, driver: Driver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "weights").write_bytes(bytes(500_000))
    monkeypatch.setattr(weights, "READERS", 500)
    limit = resource.getrlimit(resource.RLIMIT_AS)
    mapped = resource.getpagesize() * int(Path("/proc/self/statm").read_text().split()[0])
    resource.setrlimit(resource.RLIMIT_AS, (mapped + (100 << 20), limit[1]))  # room for some threads' stacks
    try:
        with pytest.raises(CapacityError, match="this system gives no 500 threads"):
            copied(cuda, driver, tmp_path / "weights", 500_000)
    finally:
        resource.setrlimit(resource.RLIMIT_AS, limit)


def test_closing_early_ends_the_readers(cuda: FakeCuda, driver: Driver, tmp_path: Path) -> None:
    (tmp_path / "weights").write_bytes(bytes(500_000))
    address = driver.alloc(500_000)
    copy = Weights(driver, next(iter(cuda.live["context"])), Copier(copier()), tmp_path / "weights", address, 500_000)
    copy.close()
    driver.free(address)
